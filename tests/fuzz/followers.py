"""Strangers at the socket on which process 0 of a trainer waits for the others, and frames that
are nearly right on a connection of one that has the key.

Each round ends with an honest follower, which must get in.
"""

import contextlib
import queue
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Final

import msgspec

from rlboost_jax.learner.processes.handshake import LIMITS, NAME, Handshakes, dial, new_key, tls_of
from rlboost_jax.learner.processes.trainer_channel import PeerGone, TrainerChannel
from tests.fuzz.mutators import Mutator
from tests.patience import PATIENCE_SECONDS

STRANGERS: Final = 30  # a round
FRAMES: Final = 2_000  # a round, decoded
CORPUS: Final = tuple(
    msgspec.msgpack.encode(message)
    for message in (
        ["orders", 1, 1],
        [0, "ended"],
        ["2", [], ""],
        ["train", 3, [{"prompt": 1, "trajectories": [{"tokens": msgspec.msgpack.Ext(1, b"x")}]}]],
        ["save", 7, {"window": None, "rates": [1.5, -0.0]}],
    )
)
_HELLO: Final = bytes.fromhex("1603010200010001fc0303")  # of TLS, as it begins


def fuzz(seconds: float, seed: int) -> Counter[str]:
    """What was tried; raises AssertionError where an honest follower does not get in."""
    random, tried = Random(seed), Counter[str]()
    mutants = Mutator(CORPUS, random)
    deadline = time.monotonic() + seconds
    while not tried or time.monotonic() < deadline:
        _decoded(mutants, tried)
        _attacked(mutants, random, tried)
        tried["rounds"] += 1
    return tried


def _decoded(mutants: Mutator, tried: Counter[str]) -> None:
    """Frames on a connection: each is a value or PeerGone, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        channel = TrainerChannel(listener.accept()[0])
    with here, contextlib.closing(channel):
        for _ in range(FRAMES):
            frame = mutants()[:60_000]  # that fit in the system's buffers
            here.sendall(struct.pack(">Q", len(frame)) + frame)
            try:
                channel.receive()
                tried["values"] += 1
            except PeerGone:
                tried["refused"] += 1


def _attacked(mutants: Mutator, random: Random, tried: Counter[str]) -> None:
    key = new_key()
    with Handshakes(
        socket.create_server(("127.0.0.1", 0)), key, limits=replace(LIMITS, handshake_seconds=60.0)
    ) as handshakes:
        address = handshakes._listener.getsockname()
        strangers = [_stranger(address, mutants, random, tried) for _ in range(STRANGERS)]
        tls = tls_of(key, listens=False)
        for _ in range(3):  # who has the key, and says anything
            with contextlib.suppress(OSError):
                plain = socket.create_connection(address, PATIENCE_SECONDS)
                with tls.wrap_socket(plain, server_hostname=NAME) as known:
                    frame = mutants()
                    known.sendall(struct.pack(">Q", len(frame)) + frame)
            tried["with the key"] += 1
        inside: queue.SimpleQueue[TrainerChannel] = queue.SimpleQueue()
        honest = threading.Thread(
            target=lambda: inside.put(dial(address, tls, ["honest"], PATIENCE_SECONDS)),
            daemon=True,
        )
        honest.start()
        said: object = None
        while said != ["honest", 1]:
            said, channel = handshakes.arrived(PATIENCE_SECONDS)
            with contextlib.suppress(PeerGone):
                channel.send(True)
        inside.get(timeout=PATIENCE_SECONDS).close()
        honest.join(PATIENCE_SECONDS)
        for stranger in strangers:
            stranger.close()


def _stranger(
    address: tuple[str, int], mutants: Mutator, random: Random, tried: Counter[str]
) -> socket.socket:
    """Who stays, however much of it was heard."""
    connection: socket.socket = socket.create_connection(address, PATIENCE_SECONDS)
    kind = random.choice(("silent", "noise", "a frame", "half a handshake", "another key"))
    tried[kind] += 1
    with contextlib.suppress(OSError):
        if kind == "noise":
            connection.sendall(random.randbytes(random.randint(1, 5_000)))
        elif kind == "a frame":
            frame = mutants()[:60_000]
            length = random.choice((len(frame), 2**32, 2**63, 0))
            connection.sendall(struct.pack(">Q", length) + frame)
        elif kind == "half a handshake":
            connection.sendall(_HELLO + random.randbytes(random.randint(0, 600)))
        elif kind == "another key":
            context = tls_of(new_key(), listens=False)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection.settimeout(PATIENCE_SECONDS)
            connection = context.wrap_socket(connection)
    return connection
