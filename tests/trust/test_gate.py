"""The listening socket, met by peers that do not behave."""

import asyncio
import gzip
import resource
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlboost_jax.trust import authority
from rlboost_jax.trust.credentials import read_credentials
from rlboost_jax.trust.gate import RUNNER_OPTIONS, SPARE_FILES, Gate, max_connections
from tests.certificates import make_run
from tests.listeners import limits_of
from tests.patience import PATIENCE_SECONDS

# Of a newcomer: more than any answer takes, less than the patience of a test.
NEWCOMER_SECONDS = PATIENCE_SECONDS / 4
GET = b"GET / HTTP/1.1\r\nHost: h\r\n"
Run = Callable[..., Any]


@asynccontextmanager
async def listening(
    gate: Gate,
    *,
    admits: bool = True,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        if admits:
            gate.admit(request.protocol, request.headers.get("X-Token", ""))
        return web.Response(text="answer")

    async def size(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application()
    app.router.add_get("/", answer)

    async def frames(request: web.Request) -> web.WebSocketResponse:
        gate.admit(request.protocol, "a peer's")
        socket = web.WebSocketResponse(max_msg_size=2**21, compress=False)
        await socket.prepare(request)
        gate.count_frames(request.protocol)
        async for frame in socket:
            gate.heard(request.protocol, len(frame.data))
            await socket.send_str(str(len(frame.data)))
        return socket

    app.router.add_get("/frames", frames)
    app.router.add_post("/size", size)
    # Between two requests, longer than what is let pass here.
    options = {**RUNNER_OPTIONS, "keepalive_timeout": PATIENCE_SECONDS}
    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    await runner.setup()
    assert runner.server is not None
    server = await gate.listen(runner.server, "127.0.0.1", 0, tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await runner.cleanup()


def gate_of(**limits: int) -> Gate:
    given = {"newcomer_seconds": NEWCOMER_SECONDS, "handshake_seconds": NEWCOMER_SECONDS, **limits}
    return Gate(limits_of(**given))


def pass_time(seconds: float) -> None:
    """Let the timers of the running loop go by a clock that is so much ahead from now on."""
    loop = asyncio.get_running_loop()
    real = loop.time
    loop.time = lambda: real() + seconds  # type: ignore[method-assign]


class Caller:
    """A plain connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def dial(port: int, tls: ssl.SSLContext | None = None) -> "Caller":
        return Caller(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    async def ask(self, *headers: bytes) -> bytes:
        """The first line of the answer; b"" from who has hung up."""
        try:
            self.writer.write(GET + b"".join(h + b"\r\n" for h in headers) + b"\r\n")
            line = await self.reader.readline()
            if line:
                await self.reader.readuntil(b"\r\n\r\nanswer" if b"200" in line else b"\r\n\r\n")
        except ConnectionError:
            return b""
        return line.strip()

    async def hung_up(self) -> None:
        """Returns once the other side has ended it, whatever it says before that."""
        try:
            while await self.reader.read(1000):
                pass
        except ConnectionError:
            pass


def test_who_says_nothing_of_use_is_hung_up_on(run: Run) -> None:
    async def story() -> None:
        async with listening(gate_of(), admits=False) as port:
            silent, slow, stranger = [await Caller.dial(port) for _ in range(3)]
            slow.writer.write(GET + b"X-Slow: ")
            assert b"200" in await stranger.ask()  # it is answered, and has shown no token
            pass_time(NEWCOMER_SECONDS)
            for caller in (silent, slow, stranger):
                await caller.hung_up()

    run(story())


def test_who_has_shown_a_token_may_be_silent(run: Run) -> None:
    async def story() -> None:
        gate = gate_of()
        async with listening(gate) as port:
            known, silent = await Caller.dial(port), await Caller.dial(port)
            assert b"200" in await known.ask()
            pass_time(NEWCOMER_SECONDS)
            await silent.hung_up()  # its time was over after that of the other
            assert b"200" in await known.ask()
            assert not gate._newcomers

    run(story())


def test_of_too_many_newcomers_the_oldest_goes(run: Run) -> None:
    async def story() -> None:
        async with listening(gate_of(newcomers=3)) as port:
            crowd = [await Caller.dial(port) for _ in range(3)]
            late = await Caller.dial(port)
            await crowd[0].hung_up()
            for caller in (late, crowd[1], crowd[2]):
                assert b"200" in await caller.ask()

    run(story())


def test_beyond_the_last_connection_there_is_none(run: Run) -> None:
    async def story() -> None:
        async with listening(gate_of(connections=2)) as port:
            inside = [await Caller.dial(port) for _ in range(2)]
            for caller in inside:
                assert b"200" in await caller.ask()
            outside = await Caller.dial(port)
            assert b" 503 " in await outside.ask()
            for caller in inside:
                assert b"200" in await caller.ask()

    run(story())


def test_of_one_credential_there_are_only_so_many(run: Run) -> None:
    async def story() -> None:
        async with listening(gate_of(connections=4, credential_connections=2)) as port:
            callers = [await Caller.dial(port) for _ in range(4)]
            answers = [await each.ask(b"X-Token: one") for each in callers[:3]]
            assert [b" 200 " in each for each in answers] == [True, True, False]
            assert b" 429 " in answers[2]
            assert b" 200 " in await callers[3].ask(b"X-Token: two")
            callers[0].writer.close()
            await callers[0].hung_up()
            while b" 200 " not in await callers[2].ask(b"X-Token: one"):
                pass  # the other side has not heard of it yet

    run(story())


@pytest.mark.parametrize("shake_hands", [True, False])
def test_a_crowd_of_newcomers_keeps_nobody_out(run: Run, tmp_path: Path, shake_hands: bool) -> None:
    """However many there are, in the middle of a handshake or after it: who shows a token has it
    answered, on a new connection and on one that is open."""
    folder = make_run(tmp_path)
    tls = read_credentials(folder / "join", environment={}).tls

    async def story() -> None:
        gate = gate_of(connections=8, newcomers=4)
        server = authority.server_tls(folder / "authority")
        async with listening(gate, tls=server) as port:
            known = await Caller.dial(port, tls)
            assert b" 200 " in await known.ask()
            for _ in range(3):
                crowd = [await Caller.dial(port, tls if shake_hands else None) for _ in range(12)]
                late = await Caller.dial(port, tls)
                assert b" 200 " in await late.ask()
                assert b" 200 " in await known.ask()
                assert len(gate._newcomers) <= 4
                await crowd[0].hung_up()

    run(story())


async def begun(port: int, size: int, sent: int) -> Caller:
    """A stream in the middle of a frame: so many of its bytes were sent."""
    caller = await Caller.dial(port)
    caller.writer.write(
        b"GET /frames HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await caller.reader.readuntil(b"\r\n\r\n")
    caller.writer.write(b"\x82\xff" + size.to_bytes(8, "big") + bytes(4) + bytes(sent))
    return caller


async def size_heard(caller: Caller) -> int:
    """What the other side says of a frame that it has whole; -1: it has hung up."""
    try:
        head = await caller.reader.readexactly(2)
        return int(await caller.reader.readexactly(head[1]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return -1


def test_of_frames_that_do_not_end_the_oldest_goes(run: Run) -> None:
    """And who ends theirs is heard, however many do not."""

    async def story() -> None:
        most = 2**20 + 2**17
        gate = gate_of(message_bytes=2**20, credential_bytes=most, total_bytes=most)
        async with listening(gate) as port:
            crowd = [await begun(port, 2**20, 300_000) for _ in range(3)]
            while gate.budget.total < 900_000:
                await asyncio.sleep(0)
            for number in range(5):
                honest = await begun(port, 600_000, 600_000)
                assert await size_heard(honest) == 600_000
                if not number:
                    await crowd[0].hung_up()
                    await crowd[1].hung_up()
                honest.writer.write(b"\x82\xfe" + (500).to_bytes(2, "big") + bytes(4 + 500))
                assert await size_heard(honest) == 500
            held = gate.budget.total
            assert 0 < held <= 400_000  # of the last of the crowd, and of nobody else
            crowd[2].writer.write(bytes(2**20 - 300_000))
            assert await size_heard(crowd[2]) == 2**20
            assert gate.budget.total == 0
            late = await begun(port, 2**20, 300_000)
            while not gate.budget.total:
                await asyncio.sleep(0)
            late.writer.close()
            while gate.budget.total:
                await asyncio.sleep(0)

    run(story())


def test_the_first_line_has_a_size(run: Run) -> None:
    async def story() -> None:
        async with listening(gate_of()) as port:
            caller = await Caller.dial(port)
            caller.writer.write(b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b" 400 " in await caller.reader.readline()

    run(story())


@pytest.mark.parametrize(
    "headers", [(b"X: " + b"x" * 5000,), tuple(b"X-%d: x" % i for i in range(50))]
)
def test_headers_have_a_size(run: Run, headers: tuple[bytes, ...]) -> None:
    async def story() -> None:
        async with listening(gate_of()) as port:
            assert b" 400 " in await (await Caller.dial(port)).ask(*headers)

    run(story())


def test_a_body_is_as_large_as_what_was_sent(run: Run) -> None:
    """However much it would be inflated: nobody here reads bodies, and all have a bound."""
    body = gzip.compress(bytes(10**6))

    async def story() -> None:
        async with listening(gate_of()) as port:
            caller = await Caller.dial(port)
            head = b"POST /size HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\n"
            caller.writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await caller.reader.readuntil(b"\r\n\r\n")
            assert await caller.reader.readexactly(len(str(len(body)))) == b"%d" % len(body)

    run(story())


WANTED = 8_000
ENOUGH = WANTED + SPARE_FILES


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "most"),
    [
        (1024, ENOUGH + 1, ENOUGH, WANTED),  # it may have more, and asks for that
        (1024, resource.RLIM_INFINITY, ENOUGH, WANTED),
        (1024, 4096, 4096, 4096 - SPARE_FILES),
        (256, 256, 256, 256 - SPARE_FILES),
        (ENOUGH + 1, ENOUGH + 1, None, WANTED),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, WANTED),
    ],
)
def test_descriptors_are_left_for_all_that_is_no_connection(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int | None, most: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append(limits))
    assert max_connections(WANTED) == most
    assert set_to == ([] if asked is None else [(asked, hard)])


@pytest.mark.parametrize(
    "nonsense", [b"\x00\x01 nonsense", GET + b"Content-Length: -1", GET + b":"]
)
def test_what_is_no_http_leaves_no_traceback(
    run: Run, caplog: pytest.LogCaptureFixture, nonsense: bytes
) -> None:
    async def story() -> None:
        async with listening(gate_of()) as port:
            caller = await Caller.dial(port)
            caller.writer.write(nonsense + b"\r\n\r\n")
            await caller.hung_up()

    run(story())
    assert "Traceback" not in caplog.text


def test_without_a_certificate_no_request_is_read(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    credentials = read_credentials(folder / "join", environment={})
    nobody = ssl.create_default_context(cafile=folder / "join" / "ca.pem")
    nobody.check_hostname = False

    async def story() -> None:
        async with listening(gate_of(), tls=authority.server_tls(folder / "authority")) as port:
            assert b"200" in await (await Caller.dial(port, credentials.tls)).ask()
            assert await (await Caller.dial(port, nobody)).ask() == b""
            assert await (await Caller.dial(port)).ask() == b""
            silent = await Caller.dial(port)  # in the middle of a handshake
            assert b"200" in await (await Caller.dial(port, credentials.tls)).ask()
            pass_time(NEWCOMER_SECONDS)
            await silent.hung_up()
            assert b"200" in await (await Caller.dial(port, credentials.tls)).ask()

    run(story())
