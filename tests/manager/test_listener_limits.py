"""Every listener has limits, with sums; and what they add up to is what a process takes up."""

import ast
import asyncio
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rlboost_jax
from rlboost_jax.environments import remote
from rlboost_jax.environments.adapters import verifiers_answers
from rlboost_jax.gateway.limits import GatewayLimits, listener_limits
from rlboost_jax.gateway.listener import LIMITS as IN_A_RUN
from rlboost_jax.learner.processes import handshake
from rlboost_jax.manager.service import gate
from rlboost_jax.manager.service.app import manager_limits
from rlboost_jax.manager.service.file_server import __main__ as files
from rlboost_jax.manager.service.listener_limits import OWNER, ByteBudget, ListenerLimits
from rlboost_jax.manager.service.page import app as page
from rlboost_jax.manager.service.peer import Unsent
from rlboost_jax.messages import TOKEN_BATCH_BYTES
from rlboost_jax.rollout.sharing import socket as budget_socket
from tests.listeners import limits_of

ROOT = Path(rlboost_jax.__file__).parent
THREATS = ROOT.parent / "docs" / "explanation" / "threat-model.md"

# Where the product listens, and the limits of who listens there. A module that makes a socket or a
# server and is not here has a listener without limits.
LISTENS = {
    "manager/service/gate.py": "whatever it is given",
    "manager/service/file_server/process.py": "of the gate that its sockets are handed to",
    "page.py": page.LIMITS,
    "learner/processes/leader.py": handshake.LIMITS,
    "rollout/sharing/socket.py": budget_socket.LIMITS,
}
LISTENING = frozenset(
    (
        *("create_server", "create_unix_server", "start_server", "start_unix_server", "run_app"),
        *("TCPSite", "UnixSite", "SockSite", "HTTPServer", "ThreadingHTTPServer", "TCPServer"),
    )
)
# By the weakest credential that gets anywhere, as the threat model's table has them.
LISTENERS = {
    "manager": (manager_limits(TOKEN_BATCH_BYTES), "the servers' token and certificate"),
    "file server": (files.LIMITS, "the servers' token and certificate"),
    "page": (page.LIMITS, "the page's token"),
    "gateway": (listener_limits(GatewayLimits()), "the tokens of its sessions"),
    "gateway of a run": (listener_limits(IN_A_RUN), "the tokens of its sessions"),
    "environments' port": (remote.LIMITS, "the hosts' token and certificate"),
    "verifiers adapter": (verifiers_answers.LIMITS, "none: its path is a secret"),
    "trainer's other processes": (handshake.LIMITS, "none: the key of a start"),
    "budget socket": (budget_socket.LIMITS, "none: this user's processes"),
}


def calls(tree: ast.AST) -> set[str]:
    """Names of what is called within a module, without what it is an attribute of."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            found.add(
                called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            )
    return found


def without_limits(modules: dict[str, str]) -> list[str]:
    """Modules that listen, or make a server of HTTP, and have no limits for it."""
    found = []
    for name, text in modules.items():
        called = calls(ast.parse(text))
        plain = called & LISTENING or ("AF_UNIX" in text and "listen" in called)
        if plain and name not in LISTENS:
            found.append(name)
        if "AppRunner" in called and "Gate" not in called:
            found.append(name)
    return found


def product() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}


def test_no_listener_is_without_limits() -> None:
    modules = product()
    assert without_limits(modules) == []
    assert all(calls(ast.parse(modules[name])) & (LISTENING | {"listen"}) for name in LISTENS)
    assert inspect.signature(gate.Gate).parameters["limits"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "planted",
    [
        "async def f():\n    return await asyncio.start_server(g, '', 0)",
        "socket.create_server(('', 0))",
        "web.AppRunner(app)",
        "socket.socket(socket.AF_UNIX).listen()",
        "ThreadingHTTPServer(('', 0), handler)",
    ],
)
def test_a_listener_without_limits_is_found(planted: str) -> None:
    assert without_limits({"new.py": planted}) == ["new.py"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"total_bytes": 0},
        {"connections": 0},
        {"newcomers": 0},
        {"newcomer_seconds": float("inf")},
        {"credential_connections": 101},
        {"credential_bytes": 2**27},  # more than in sum
        {"message_bytes": 2**25},  # more than of one credential
    ],
)
def test_limits_without_a_sum_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="listener"):
        limits_of(**wrong)


def test_a_budget_holds_its_sums() -> None:
    limits = limits_of(message_bytes=10, credential_bytes=30, total_bytes=50, setting="--most")
    budget = ByteBudget(limits)
    assert not budget.take("a", 30)
    assert "30 bytes for one credential (--most)" in budget.take("a", 1)
    assert not budget.take("b", 10)
    assert not budget.take(OWNER, 10)
    assert "50 bytes at a time (--most)" in budget.take("b", 1)
    assert budget.take(OWNER, 1)
    budget.give("a", 30)
    assert not budget.take(OWNER, 30) and budget.total == 50  # as much as all, if nobody else asks
    with pytest.raises((AssertionError, KeyError)):
        budget.give("a", 1)


class Reader:
    """A peer for whom so much is queued."""

    def __init__(self, unsent: Unsent) -> None:
        self.unsent, self.queued, self.lost = unsent, 0, ""

    def send(self, size: int) -> None:
        self.queued += size
        self.unsent.add(self, size)

    def drop(self, reason: str) -> None:
        size, self.queued, self.lost = self.queued, 0, reason
        self.unsent.remove(self, size)


def test_who_reads_least_is_lost_first() -> None:
    unsent = Unsent(100)
    slow, slower, quick = (Reader(unsent) for _ in range(3))
    slow.send(40)
    slower.send(50)
    quick.send(10)
    assert not (slow.lost or slower.lost or quick.lost)
    quick.send(1)
    assert "over 100 bytes wait" in slower.lost and not (slow.lost or quick.lost)
    assert unsent.size == 51


@pytest.mark.parametrize("name", LISTENERS)
def test_the_threat_model_says_what_each_can_be_made_to_hold(name: str) -> None:
    limits, weakest = LISTENERS[name]
    assert f"{row(name, limits, weakest)}\n" in THREATS.read_text()


def row(name: str, limits: ListenerLimits, weakest: str) -> str:
    cells = (
        *(name, weakest, f"{limits.credential_connections:,} of {limits.connections:,}"),
        *(f"{limits.newcomers}", mebibytes(limits.credential_bytes)),
        *(mebibytes(limits.total_bytes), mebibytes(limits.credential_peak_bytes)),
        mebibytes(limits.peak_bytes),
    )
    return f"| {' | '.join(cells)} |"


def mebibytes(size: int) -> str:
    return f"{-(-size // 2**20):,} MiB"


GATEWAY = """
import asyncio, socket
from dataclasses import replace
from rlboost_jax.gateway import app, serving
from rlboost_jax.gateway.limits import GatewayLimits, listener_limits
from rlboost_jax.gateway.sessions import Sessions
from tests.gateway.fakes import Fake

def limits(given):
    return replace(listener_limits(given), {limits})

async def main():
    app.listener_limits = serving.listener_limits = limits
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    sessions = Sessions(Fake(), GatewayLimits())
    token = sessions.open().token
    async with serving.listening(sessions, listener, token=None):
        print(listener.getsockname()[1], token, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
MIB = 2**20
CROWD, BODY = 48, 6 * MIB


def test_a_gateways_process_takes_up_no_more_than_its_limits_say() -> None:
    """By one session's token, with all connections at once in the middle of a body."""
    changes = dict(
        connections=32,
        credential_connections=24,
        newcomers=8,
        message_bytes=8 * MIB,
        credential_bytes=16 * MIB,
        total_bytes=32 * MIB,
        held_per_byte=1,  # nobody sends a whole one
        peak_of_one=0,
    )
    bound = replace(listener_limits(GatewayLimits()), **changes).peak_bytes
    assert bound < 24 * BODY  # or nothing is shown: so many may connect

    async def story() -> int:
        text = GATEWAY.format(limits=", ".join(f"{k}={v}" for k, v in changes.items()))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", text), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            port, token = (await process.stdout.readline()).decode().split()
            before = resident(process.pid)
            ends = await asyncio.gather(*(half_a_body(int(port), token) for _ in range(CROWD)))
            assert any(b" 429 " in each for each in ends)
            return resident(process.pid, "VmHWM") - before
        finally:
            process.kill()
            await process.wait()

    assert asyncio.run(story()) <= bound


async def half_a_body(port: int, token: str) -> bytes:
    """What is answered to a body that never ends; b"" where nothing is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {BODY + 1}\r\n\r\n"
    )
    sending = asyncio.create_task(_sent(writer, head.encode() + bytes(BODY)))
    answering = asyncio.create_task(reader.readline())
    await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
    answer = b""
    if answering.done() and answering.exception() is None:
        answer = answering.result()
    else:
        answering.cancel()
    sending.cancel()
    await asyncio.gather(sending, answering, return_exceptions=True)
    HELD_OPEN.append(writer)
    return answer


HELD_OPEN: list[asyncio.StreamWriter] = []


async def _sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    for start in range(0, len(data), 2**18):
        writer.write(data[start : start + 2**18])
        await writer.drain()


def resident(pid: int, what: str = "VmRSS") -> int:
    """Bytes of a process that are in memory, now or (VmHWM) at the most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what}")
