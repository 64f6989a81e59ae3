"""Who gets in where process 0 waits for the others, and who cannot keep them out."""

import errno
import os
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.processes.handshake import (
    LIMITS,
    NAME,
    Handshakes,
    Key,
    dial,
    new_key,
    tls_of,
)
from rlboost_jax.learner.processes.leader import PURPOSES, _accepted
from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.learner.processes.trainer_channel import PeerGone, TrainerChannel
from tests.patience import PATIENCE_SECONDS

LEADER = ProcessGroup(index=0, count=2, coordinator="127.0.0.1:1")
NEVER = 1e6  # seconds


@pytest.fixture(scope="module")
def key() -> Key:
    return new_key()


@contextmanager
def at(handshakes: Handshakes) -> Iterator[tuple[str, int]]:
    with handshakes:
        yield handshakes._listener.getsockname()[:2]


def listening(key: Key, **limits: float) -> Handshakes:
    listener = socket.create_server(("127.0.0.1", 0))
    return Handshakes(listener, key, limits=replace(LIMITS, **limits))  # type: ignore[arg-type]


def all_come_in(handshakes: Handshakes, address: tuple[str, int], key: Key) -> None:
    """An honest follower, from its first connection to the last."""
    theirs: queue.SimpleQueue[dict[str, TrainerChannel]] = queue.SimpleQueue()

    def follow() -> None:
        tls = tls_of(key, listens=False)
        theirs.put({p: dial(address, tls, [p, 1], PATIENCE_SECONDS) for p in PURPOSES})

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    ours = _accepted(handshakes, LEADER)
    there = theirs.get(timeout=PATIENCE_SECONDS)
    for purpose in PURPOSES:
        (here,) = ours[purpose]
        here.send(purpose)
        assert there[purpose].receive() == purpose
        for channel in (here, there[purpose]):
            channel.close()
    following.join(PATIENCE_SECONDS)


def test_who_is_silent_keeps_nobody_out(key: Key) -> None:
    """However long it may be so."""
    with ExitStack() as stack:
        handshakes = listening(key, handshake_seconds=NEVER)
        address = stack.enter_context(at(handshakes))
        for _ in range(20):
            stack.enter_context(socket.create_connection(address))
        all_come_in(handshakes, address, key)


def test_of_a_crowd_the_longest_there_go_first(key: Key) -> None:
    with ExitStack() as stack:
        handshakes = listening(key, handshake_seconds=NEVER, newcomers=4)
        address = stack.enter_context(at(handshakes))
        crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        for silent in crowd[:6]:
            silent.settimeout(PATIENCE_SECONDS)
            assert silent.recv(1) == b"", "it was hung up on"
        all_come_in(handshakes, address, key)


class WithoutDescriptors(socket.socket):
    """A listener whose process has none left for the first few who come."""

    missing = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.missing:
            self.missing -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_where_no_descriptor_is_left_they_come_in_later(key: Key) -> None:
    listener = WithoutDescriptors()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    door = Handshakes(listener, key)
    with at(door) as address:
        all_come_in(door, address, key)
    assert not listener.missing


def test_who_arrives_as_it_closes_is_not_left_behind(key: Key) -> None:
    """Nobody gets between the look at whether it is closed and the arrival."""
    held: list[bool] = []
    handshakes = listening(key, handshake_seconds=PATIENCE_SECONDS)

    class Arrivals(queue.Queue[tuple[object, TrainerChannel]]):
        def put(
            self, item: tuple[object, TrainerChannel], *more: object, **options: object
        ) -> None:
            held.append(handshakes._lock.locked())
            super().put(item)

    handshakes._arrived = Arrivals()
    with at(handshakes) as address:
        all_come_in(handshakes, address, key)
    assert held and all(held)


def test_who_says_nothing_is_hung_up_on(key: Key) -> None:
    with (
        at(listening(key, handshake_seconds=0.1)) as address,
        socket.create_connection(address, PATIENCE_SECONDS) as silent,
    ):
        assert silent.recv(1) == b""


def test_so_is_who_has_the_key_and_says_no_more(key: Key) -> None:
    seconds = 0.1
    while True:
        with at(listening(key, handshake_seconds=seconds)) as address, ExitStack() as stack:
            plain = socket.create_connection(address, PATIENCE_SECONDS)
            stack.callback(plain.close)
            try:
                silent = tls_of(key, listens=False).wrap_socket(plain, server_hostname=NAME)
                stack.enter_context(silent)
                assert silent.recv(1) == b""
                return
            except (ssl.SSLError, ConnectionError):  # it takes longer over it on this machine
                assert seconds < PATIENCE_SECONDS
                seconds *= 2


@pytest.mark.parametrize(
    "said",
    [b"\0" * 8, b"\0\0\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\x0f\x42\x40" + b"\x91" * 1_000_000, b"x"],
)
def test_a_frame_in_plain_is_not_looked_at(key: Key, said: bytes) -> None:
    handshakes = listening(key)
    with at(handshakes) as address:
        stranger = socket.create_connection(address, PATIENCE_SECONDS)
        with stranger, suppress(OSError):  # hung up on already
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
        all_come_in(handshakes, address, key)


@pytest.mark.parametrize("shown", ["nothing", "its own"])
def test_another_key_opens_nothing(key: Key, shown: str) -> None:
    handshakes = listening(key, handshake_seconds=PATIENCE_SECONDS)
    with at(handshakes) as address:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if shown == "its own":
            tls = tls_of(new_key(), listens=False)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(address, PATIENCE_SECONDS)
        with tls.wrap_socket(plain) as stranger, pytest.raises(PeerGone):
            (channel := TrainerChannel(stranger)).send(["orders", 1, 1])
            channel.receive(seconds=PATIENCE_SECONDS)
        with pytest.raises(TimeoutError):
            handshakes.arrived(0.0)
        all_come_in(handshakes, address, key)


@pytest.mark.parametrize(
    "word", [["orders", 2], ["orders", 0], ["order", 1], ["orders"], [], [[], {}], [None, "x"]]
)
def test_who_has_the_key_and_talks_nonsense_is_hung_up_on(key: Key, word: list[object]) -> None:
    handshakes = listening(key, handshake_seconds=PATIENCE_SECONDS)
    with at(handshakes) as address:
        plain = socket.create_connection(address, PATIENCE_SECONDS)
        with tls_of(key, listens=False).wrap_socket(plain, server_hostname=NAME) as talking:
            (channel := TrainerChannel(talking)).send([*word, 1])
            handshakes._arrived.put(handshakes.arrived(PATIENCE_SECONDS))  # it is the first
            all_come_in(handshakes, address, key)
            with pytest.raises(PeerGone, match="closed"):
                channel.receive(seconds=PATIENCE_SECONDS)


def test_who_was_not_heard_out_comes_again(key: Key) -> None:
    """Its last attempt counts, in whatever order they are heard: it has let go of the others."""
    handshakes = listening(key, handshake_seconds=PATIENCE_SECONDS)
    with at(handshakes) as address:
        tls = tls_of(key, listens=False)
        plain = socket.create_connection(address)
        with tls.wrap_socket(plain, server_hostname=NAME) as first:
            first.sendall(b"\0\0\0\0\0\0\0\x0a\x93\xa6orders\x01\x00")
            all_come_in(handshakes, address, key)


def test_a_follower_says_nothing_to_who_has_not_the_key(key: Key) -> None:
    other = tls_of(new_key(), listens=True)
    heard: list[bytes] = []

    def pretend(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain, pytest.raises(OSError):
            heard.append(other.wrap_socket(plain, server_side=True).recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        pretending = threading.Thread(target=pretend, args=(listener,), daemon=True)
        pretending.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            address = listener.getsockname()
            dial(address, tls_of(key, listens=False), ["orders", 1], PATIENCE_SECONDS)
        pretending.join(PATIENCE_SECONDS)
    assert heard == []


def test_both_sides_talk_at_once(key: Key) -> None:
    """Arrays fit no buffer, so each side sends and receives in two threads."""
    handshakes, tls = listening(key), tls_of(key, listens=False)
    arrays = [np.full(200_000 + i, i, np.int64) for i in range(8)]
    with at(handshakes) as address:
        dialled: list[TrainerChannel] = []

        def dial_in() -> None:
            dialled.append(dial(address, tls, ["x"], PATIENCE_SECONDS))

        dialling = threading.Thread(target=dial_in, daemon=True)
        dialling.start()
        _, here = handshakes.arrived(PATIENCE_SECONDS)
        here.send(True)
        dialling.join(PATIENCE_SECONDS)
        (there,) = dialled
        speaking = [
            threading.Thread(target=lambda c=c: [c.send(a) for a in arrays], daemon=True)
            for c in (here, there)
        ]
        for thread in speaking:
            thread.start()
        heard: dict[TrainerChannel, list[np.ndarray]] = {here: [], there: []}

        def hear(channel: TrainerChannel) -> None:
            heard[channel] = [channel.receive() for _ in arrays]

        hearing = [threading.Thread(target=hear, args=(c,), daemon=True) for c in (here, there)]
        for thread in hearing:
            thread.start()
        for thread in (*speaking, *hearing):
            thread.join(PATIENCE_SECONDS)
        for received in heard.values():
            for sent, got in zip(arrays, received, strict=True):
                np.testing.assert_array_equal(sent, got)
        ended: list[PeerGone] = []

        def wait() -> None:
            try:
                here.receive()
            except PeerGone as error:
                ended.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        here.close()  # while another thread waits for what does not come
        waiting.join(PATIENCE_SECONDS)
        there.close()
        assert len(ended) == 1


def test_the_key_shows_nowhere(key: Key) -> None:
    assert "PRIVATE" in key.private and "PRIVATE" not in repr(key)
