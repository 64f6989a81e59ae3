"""Every listener has limits, with sums; and what they add up to is what a process takes up."""

import ast
import asyncio
import inspect
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import rlboost_jax
from rlboost_jax.environments.adapters import verifiers_answers
from rlboost_jax.environments.environment_kind import ROUTE
from rlboost_jax.gateway.gateway_limits import GatewayLimits, listener_limits
from rlboost_jax.gateway.listener import LIMITS as IN_A_RUN
from rlboost_jax.learner.processes import handshake
from rlboost_jax.manager.service.manager_app import manager_limits
from rlboost_jax.manager.service.page import page_app as page
from rlboost_jax.manager.service.peer import Unsent
from rlboost_jax.messages import TOKEN_BATCH_BYTES
from rlboost_jax.rollout.sharing import neighbours
from rlboost_jax.rollout.sharing import socket as budget_socket
from rlboost_jax.trust import gate
from rlboost_jax.trust.credentials import read_environment_credentials
from rlboost_jax.trust.listener_limits import OWNER, ByteBudget, ListenerLimits
from rlboost_jax.weights.file_server import __main__ as files
from rlboost_jax.weights.peers.piece_serving import PEER_LIMITS
from rlboost_jax.workers import remote_workers as remote
from tests.listeners import limits_of

ROOT = Path(rlboost_jax.__file__).parent
THREATS = ROOT.parent / "docs" / "explanation" / "threat-model.md"

# Where the product listens, and the limits of who listens there. A module that makes a socket or a
# server and is not here has a listener without limits.
LISTENS = {
    "trust/gate.py": "whatever it is given",
    "weights/file_server/file_server_process.py": "of the gate that its sockets are handed to",
    "cli/page.py": page.LIMITS,
    "learner/processes/leader.py": handshake.LIMITS,
    "rollout/sharing/neighbours.py": neighbours.LIMITS,
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
    "peers' port (of a server)": (
        PEER_LIMITS,
        "a transfer token and the servers' certificate",
    ),
    "page": (page.LIMITS, "the page's token"),
    "gateway": (listener_limits(GatewayLimits()), "the tokens of its sessions"),
    "gateway of a run": (listener_limits(IN_A_RUN), "the tokens of its sessions"),
    "environments' port": (remote.LIMITS, "the hosts' token and certificate"),
    "verifiers adapter": (verifiers_answers.LIMITS, "none: its path is a secret"),
    "trainer's other processes": (handshake.LIMITS, "none: the key of a start"),
    "budget socket": (budget_socket.LIMITS, "none: this user's processes"),
    "neighbour socket": (neighbours.LIMITS, "none: this user's processes"),
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
from rlboost_jax.gateway import gateway_app, serving
from rlboost_jax.gateway.gateway_limits import GatewayLimits
from rlboost_jax.gateway.sessions import Sessions
from tests.gateway.fakes import Fake

async def serve(limits, folder):
    gateway_app.listener_limits = serving.listener_limits = lambda given: limits
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    sessions = Sessions(Fake(), GatewayLimits())
    token = sessions.open().token
    async with serving.listening(sessions, listener, token=None):
        await serving_at(listener.getsockname()[1], token)
"""
PAGE = """
from rlboost_jax.manager.service.page import __main__ as page
from rlboost_jax.manager.service.page import page_app as app
from tests.workdirs import begun

async def serve(limits, folder):
    app.LIMITS = page.LIMITS = limits
    workdir = begun(folder)
    (workdir / "logs").mkdir(exist_ok=True)
    (workdir / "logs" / "manager.log").write_bytes(b"a line\\n" * 2**20)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    await page.listen(listener, workdir, token="secret", certificates=None)
    await serving_at(listener.getsockname()[1], "secret")
"""
FILES = """
import hashlib
from aiohttp import web
from rlboost_jax.trust.authorization import guarded
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.run_files import Tokens
from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.weights.piece_lists import write_list
from rlboost_jax.weights.serve import ServedVersions, add_routes, served_version

async def serve(limits, folder):
    data = bytes(6 * 2**20)
    (folder / "a").write_bytes(data)
    entry = FileEntry(path="a", size=len(data), sha256=hashlib.sha256(data).hexdigest())
    pieces = PieceList(files=(entry,), leaves=())
    manifest = write_list(folder, pieces, version=0, params_digest="d")
    gate = Gate(limits)
    app = guarded(Tokens(server="secret", trainer="another"), gate.admit)
    add_routes(app, ServedVersions([served_version(manifest)]))
    runner = web.AppRunner(app, **RUNNER_OPTIONS)
    await runner.setup()
    listening = await gate.listen(runner.server, "127.0.0.1", 0)
    await serving_at(listening.sockets[0].getsockname()[1], "secret")
"""
ENVIRONMENTS = """
from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.workers import remote_workers as remote
from rlboost_jax.settings.environment_config import EnvironmentConfig

async def serve(limits, folder):
    remote.LIMITS = limits
    kind = environment_kind(EnvironmentConfig(name="x"))
    listener = remote.WorkerListener(
        folder, kind, kind.remote, take=lambda worker: None, note=lambda line: None
    )
    await listener.start("127.0.0.1", 0)
    port = listener._server.sockets[0].getsockname()[1]
    await serving_at(port, (folder / remote.JOIN / "token").read_text().strip())
"""
MANAGER = """
from aiohttp import web
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.manager_app import make_app
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.run_files import Tokens
from tests.manager.fakes import settings

async def serve(limits, folder):
    manager = Manager(settings(), asyncio.get_running_loop().time())
    driver = Driver(manager, lambda *record: None, lambda entries, done: done(""))
    gate = Gate(limits)
    app = make_app(
        driver, tokens=Tokens(server="secret", trainer="another"), config=b"{}",
        snapshots=folder, server_frame_bytes=limits.message_bytes, gate=gate,
    )
    runner = web.AppRunner(app, **RUNNER_OPTIONS)
    await runner.setup()
    listening = await gate.listen(runner.server, "127.0.0.1", 0)
    await serving_at(listening.sockets[0].getsockname()[1], "secret")
"""
PIECES = """
from mmap import mmap
from aiohttp import web
from rlboost_jax.trust.gate import RUNNER_OPTIONS, Gate
from rlboost_jax.trust.transfers import transfer_token
from rlboost_jax.weights.peers.piece_orders import Held, Hold, Place
from rlboost_jax.weights.peers.piece_serving import ServedPieces, piece_app

async def serve(limits, folder):
    root, size, key = "0" * 64, 6 * 2**20, bytes(32)
    served, place = ServedPieces(), Place(block=0, offset=0, shape=(size,), strides=(1,))
    await served.obey(Hold(root=root, blocks=(0,), places=(place,)), {0: mmap(-1, size)})
    await served.obey(Held(root=root, numbers=(0,)))
    gate = Gate(limits)
    runner = web.AppRunner(piece_app(key, served, gate.admit), **RUNNER_OPTIONS)
    await runner.setup()
    listening = await gate.listen(runner.server, "127.0.0.1", 0)
    await serving_at(listening.sockets[0].getsockname()[1], transfer_token(key, "me", root))
"""
PROGRAM = """
import asyncio, socket, sys
from pathlib import Path
import msgspec
from rlboost_jax.trust.listener_limits import ListenerLimits

async def serving_at(port, token):
    print(port, token, flush=True)
    await asyncio.Event().wait()

limits, folder = msgspec.json.decode(sys.argv[1], type=ListenerLimits), Path(sys.argv[2])
asyncio.run(serve(limits, folder))
"""
MIB = 2**20
CROWD, BODY = 48, 6 * MIB
FEW = {"connections": 32, "credential_connections": 24, "newcomers": 8}
HALF = {"message_bytes": 8 * MIB, "credential_bytes": 16 * MIB, "total_bytes": 32 * MIB}
# Limits, what listens, what is sent, the path that is asked for, and what somebody must be told.
CROWDED = {
    "gateway": (
        replace(listener_limits(GatewayLimits()), **FEW, **HALF, held_per_byte=1, peak_of_one=0),
        *(GATEWAY, "a body that does not end", "/v1/chat/completions", b" 429 "),
    ),
    "page": (
        replace(page.LIMITS, **FEW, credential_bytes=4 * MIB, total_bytes=4 * MIB),
        *(PAGE, "nothing, and nothing is read", "/data/log", b" 200 "),
    ),
    "file server": (
        replace(files.LIMITS, **FEW),
        *(FILES, "nothing, and nothing is read", "/weights/0", b" 429 "),
    ),
    "environments' port": (
        replace(remote.LIMITS, **{**FEW, "credential_connections": 32}, **HALF, unsent_bytes=MIB),
        *(ENVIRONMENTS, "a frame that does not end", ROUTE, b" 101 "),
    ),
    "manager": (
        replace(
            manager_limits(8 * MIB),
            **{**FEW, "credential_connections": 32},
            **{**HALF, "unsent_bytes": MIB, "owner_bytes": 0},
        ),
        *(MANAGER, "a frame that does not end", "/instance", b" 101 "),
    ),
    "peers' port (of a server)": (
        replace(PEER_LIMITS, **FEW),
        *(PIECES, "nothing, and nothing is read", f"/pieces/{'0' * 64}/0-0", b" 503 "),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "gateway" else pytest.mark.soak) for n in CROWDED]
)
def test_a_listeners_process_takes_up_no_more_than_its_limits_say(
    name: str, tmp_path: Path
) -> None:
    """By one credential, with all connections at once in the middle of something large."""
    limits, serves, sends, path, told = CROWDED[name]
    assert name in LISTENERS and limits.peak_bytes < CROWD * BODY, "nothing would be shown"

    async def story() -> int:
        given = msgspec.json.encode(limits).decode()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", serves + PROGRAM, given, str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            port, token = (await process.stdout.readline()).decode().split()
            tls = None
            if name == "environments' port":
                tls = read_environment_credentials(tmp_path / remote.JOIN).tls
            before = resident(process.pid)
            # As many at a time as there are places for newcomers; but calls of the gateway wait for
            # seconds until they are refused.
            few = asyncio.Semaphore(CROWD if name == "gateway" else limits.newcomers)

            async def one() -> bytes:
                async with few:
                    return await asked(int(port), token, path, sends, tls)

            ends = await asyncio.gather(*(one() for _ in range(CROWD)))
            assert any(told in each for each in ends), ends
            return resident(process.pid, "VmHWM") - before
        finally:
            process.kill()
            await process.wait()

    assert asyncio.run(story()) <= limits.peak_bytes


async def asked(port: int, token: str, path: str, sends: str, tls: ssl.SSLContext | None) -> bytes:
    """The first line of an answer; b"" where none came."""
    verb, headers, body = "GET", "", b""
    if sends == "a body that does not end":
        verb, headers, body = "POST", f"Content-Length: {BODY + 1}\r\n", bytes(BODY)
    if sends == "a frame that does not end":
        headers = (
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        body = b"\x82\xff" + (BODY + 1).to_bytes(8, "big") + bytes(4 + BODY)  # RFC 6455, 5.2
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
        )
    except OSError:
        return b""
    head = (
        f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"{headers}\r\n"
    )
    sending = asyncio.create_task(_sent(writer, head.encode() + body))
    answering = asyncio.create_task(reader.readline())
    if body and verb == "GET":  # the answer comes first
        await asyncio.wait({sending})
    await asyncio.wait(
        {sending, answering} if verb == "POST" else {answering}, return_when=asyncio.FIRST_COMPLETED
    )
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
