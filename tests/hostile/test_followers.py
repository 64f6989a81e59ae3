"""What another user gets, and does, at the socket where process 0 waits for the others."""

import socket
import threading
from dataclasses import replace

import pytest

from rlboost_jax.learner.processes.handshake import LIMITS, Handshakes, Key, dial, new_key, tls_of
from rlboost_jax.learner.processes.leader import PURPOSES, _accepted
from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.learner.processes.trainer_channel import TrainerChannel
from tests.hostile.nobody import needs_root, start
from tests.patience import PATIENCE_SECONDS

pytestmark = needs_root
LEADER = ProcessGroup(index=0, count=2, coordinator="127.0.0.1:1")

# Each stays connected until its input ends, and says then what it heard.
ATTACKS = {
    "one packet that is no frame": "callers = [call(b'GET / HTTP/1.1\\r\\n\\r\\n')]",
    "lists in lists": "callers = [call(struct.pack('>Q', 10**6) + b'\\x91' * 10**6)]",
    "an array that is cut off": "callers = [call(struct.pack('>Q', 3) + b'\\xd4\\x01x')]",
    "the length of 4 GiB": "callers = [call(struct.pack('>Q', 2**32) + b'x' * 10**6)]",
    "silence": "callers = [call(b'') for _ in range(50)]",
    "a crowd": "callers = [call(b'\\x16\\x03') for _ in range(400)]",
    "a guessed token": "callers = [call(struct.pack('>Q', 4) + b'\\x93\\xa0\\x01\\xa0')]",
}
PROGRAM = """
def call(said):
    caller = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60)
    try:
        caller.sendall(said)
    except OSError:
        pass
    return caller

{attack}
print("there", flush=True)
sys.stdin.read()
heard = b""
for caller in callers:
    caller.setblocking(False)
    try:
        heard += caller.recv(65536)
    except OSError:
        pass
print(heard.hex())
"""


@pytest.fixture(scope="module")
def key() -> Key:
    return new_key()


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_followers_come_in_all_the_same(key: Key, attack: str) -> None:
    """And who has not the key hears no more than that its handshake is none."""
    handshakes = Handshakes(
        socket.create_server(("127.0.0.1", 0)),
        key,
        limits=replace(LIMITS, handshake_seconds=PATIENCE_SECONDS),
    )
    with handshakes:
        address = handshakes._listener.getsockname()
        attacker = start(PROGRAM.replace("{attack}", ATTACKS[attack]), address[1])
        try:
            assert attacker.stdout is not None and attacker.stderr is not None
            assert attacker.stdout.readline() == "there\n", attacker.stderr.read()
            mine: list[TrainerChannel] = []

            def follow() -> None:
                tls = tls_of(key, listens=False)
                mine.extend(dial(address, tls, [p, 1], PATIENCE_SECONDS) for p in PURPOSES)

            following = threading.Thread(target=follow, daemon=True)
            following.start()
            ours = _accepted(handshakes, LEADER)
            following.join(PATIENCE_SECONDS)
            heard, errors = attacker.communicate(timeout=PATIENCE_SECONDS)
            assert attacker.returncode == 0, errors
            assert bytes.fromhex(heard)[:1] in (b"", b"\x15"), "more than an alert of TLS"
            for channel in (*mine, *(c for (c,) in ours.values())):
                channel.close()
        finally:
            attacker.kill()
            attacker.wait()
