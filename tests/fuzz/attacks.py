"""What a hostile peer does to a listening manager and to its file server: frames, requests, and
connections as such.

Each attack is one connection, or a few, and returns how many frames or requests it has sent.
It raises AssertionError for an answer that gives away what it should not.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import aiohttp

from rlboost_jax import messages as m
from rlboost_jax.trust.credentials import Endpoint
from tests.fuzz import corpus
from tests.fuzz.mutators import Mutator
from tests.manager.fakes import hello
from tests.patience import PATIENCE_SECONDS

FRAMES: Final = 200  # on one stream, if it lasts
SECRET: Final = b"nobody may read this"  # in files that no manifest names

METHODS: Final = ("GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "G" * 300, "", "get")
PATHS: Final = (
    *("/", "/config", "/status", "/instance", "/trainer", "/weights", "/weights/1", "/weights/0/"),
    *("/weights/0/a/0", "/weights/1/a/0", "/weights/-1/a/0", f"/weights/{'9' * 18}/a/0"),
    *(f"/weights/{'9' * 4000}/a/0", "/weights/0/../../join/token", "/weights/0/%2e%2e/secret"),
    *("/weights/0/..%2f..%2fjoin%2ftoken", "/weights/0/secret", "/weights/0//etc/passwd"),
    *("/weights/0/a/0/../0", "/weights/0/a%00/0", "/weights/0/a\\..\\..\\join\\token"),
    *("/weights/0/since/0", "/weights/1/since/0", f"/weights/0/since/{'9' * 4000}"),
    *("/weights/0/since/../../join/token", "/weights/0/since/..%2f..%2fjoin%2ftoken"),
    *("//weights/0/a/0", "/weights/0/a/0?x=" + "y" * 3000, "/" + "z" * 9000, "*", "http://h/x"),
    *("/weights/0/" + "a/" * 1500, "/%ff%fe", "/weights/٣/a/0", "/weights/0/a/0#x", "/status "),
)
RANGES: Final = (
    *("bytes=0-", "bytes=0-0", "bytes=5-9", "bytes=-5", "bytes=9-5", "bytes=-0", "bytes=-"),
    *("bytes=0-99999999999999999999", "bytes=99999999999999999999-", "bytes=-99999999999999999999"),
    *(f"bytes={'9' * 4000}-", f"bytes=0-{'9' * 4000}", f"bytes=-{'9' * 4000}"),
    *("bytes=0-1,3-4", "bytes=" + ",".join(["0-"] * 300), "bytes=a-b", "bytes=0x1-", "items=0-1"),
    *("bytes = 0-1", "bytes=٣-", "bytes=1-1-1", "bytes=--1", "bytes=+1-2", ""),
)
HEADERS: Final = (
    *("Content-Length: 99999999999999999999", "Content-Length: -1", "Content-Length: 5"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: chunked, chunked", "Expect: 100-continue"),
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "X" * 5000),
    *("Sec-WebSocket-Key: x", "Accept-Encoding: gzip, br", "Host: " + "h" * 4000, "A: \x00", ":"),
    *("If-Range: x", "If-Modified-Since: x", "Content-Encoding: gzip", "Cookie: " + "c" * 3000),
)


@dataclass(frozen=True)
class Target:
    """What is attacked, and what the attacker holds."""

    manager: Endpoint  # with the servers' credentials
    weights: Endpoint  # the file server, likewise
    files: dict[str, bytes]  # of version 0

    def place(self, random: Random) -> tuple[str, int]:
        """Address of one of the two."""
        return _place(random.choice((self.manager, self.weights)))

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self.manager.credentials.tls


def _place(endpoint: Endpoint) -> tuple[str, int]:
    host, _, port = endpoint.address.rpartition(":")
    return host, int(port)


Attack = Callable[[Target, Random], Awaitable[int]]


async def frames(target: Target, random: Random) -> int:
    """A server's stream, with a Hello that is in order or nearly so."""
    mutants = Mutator(corpus.frames("server"), random)
    sent = 0
    async with aiohttp.ClientSession(headers=target.manager.headers) as session:
        try:
            async with session.ws_connect(
                target.manager.url("/instance"), ssl=target.manager.tls
            ) as stream:
                if random.random() < 0.9:
                    await stream.send_bytes(m.encode(hello(instance="x", fingerprint="other")))
                reading = asyncio.ensure_future(_read_on(stream))
                while sent < FRAMES and not reading.done():
                    sent += 1
                    frame = mutants()
                    if random.random() < 0.02:
                        await random.choice((stream.ping, stream.pong))(frame[:125])
                    elif random.random() < 0.01:
                        await stream.send_str("text")
                    else:
                        await stream.send_bytes(frame)
                reading.cancel()
                await asyncio.wait([reading])
        except (aiohttp.ClientError, ConnectionError):
            pass  # hung up on, as it should be
    return sent


async def _read_on(stream: aiohttp.ClientWebSocketResponse) -> None:
    async for frame in stream:
        message = m.decode_to_server(frame.data)
        assert not isinstance(message, m.Generate), "work for a stranger"


async def broken_frames(target: Target, random: Random) -> int:
    """WebSocket's own framing, gone wrong: lengths, masks, fragments, reserved bits."""
    reader, writer = await _connect(target, _place(target.manager))
    try:
        writer.write(
            b"GET /instance HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            + f"Authorization: {target.manager.headers['Authorization']}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        sent = 0
        for _ in range(random.randint(1, 20)):
            first = random.choice((0x82, 0x02, 0x00, 0x80, 0x89, 0x8A, 0x88, 0x81, 0xF2, 0x83))
            length = random.choice((0, 1, 125, 126, 127))
            extended = {
                126: struct.pack(">H", random.choice((0, 1, 65_535))),
                127: struct.pack(">Q", random.choice((0, 70_000, 2**32, 2**63 - 1, 2**64 - 1))),
            }
            mask = random.choice((0x80, 0x80, 0x80, 0))
            body = random.randbytes(random.choice((0, 4, 10, 129, 2_000)))
            writer.write(bytes([first, mask | length]) + extended.get(length, b"") + body)
            sent += 1
        await _drained(reader, writer, random)
        return sent
    finally:
        _abort(writer)


async def requests(target: Target, random: Random) -> int:
    """HTTP that nobody asks for, some of it with a token."""
    sent = 0
    for _ in range(8):
        reader, writer = await _connect(target, target.place(random))
        try:
            for _ in range(random.randint(1, 4)):
                method, path = random.choice(METHODS), random.choice(PATHS)
                lines = [f"{method} {path} HTTP/1.{random.choice('1109')}"]
                lines += random.sample(HEADERS, random.randint(0, 4))
                if random.random() < 0.7:
                    lines.append(f"Authorization: {target.manager.headers['Authorization']}")
                if random.random() < 0.5:
                    lines.append(f"Range: {random.choice(RANGES)}")
                data = "\r\n".join([*lines, "", ""]).encode()
                if random.random() < 0.2:
                    place = random.randrange(len(data))
                    data = data[:place] + random.randbytes(3) + data[place + 1 :]
                writer.write(data + random.randbytes(random.choice((0, 0, 5, 200))))
                sent += 1
            answer = await _drained(reader, writer, random)
            assert SECRET not in answer, "a file that no manifest names"
        finally:
            _abort(writer)
    return sent


async def ranges(target: Target, random: Random) -> int:
    """Parts of files, and only of these files, whatever is asked for."""
    sent = 0
    async with aiohttp.ClientSession(
        headers=target.weights.headers, auto_decompress=False
    ) as session:
        for _ in range(20):
            content = b"".join(target.files.values())
            wrong = random.random() < 0.4
            place = random.choice(PATHS) if wrong else "/weights/0"
            url = target.weights.url(urllib.parse.quote(place, safe="/%?=&"))
            headers = {"Range": random.choice(RANGES)} if random.random() < 0.8 else {}
            sent += 1
            try:
                async with session.get(url, headers=headers, ssl=target.weights.tls) as answer:
                    body = await answer.read()
            except (aiohttp.ClientError, ConnectionError):
                continue
            assert answer.status < 500, f"{answer.status} for {place[:60]} {str(headers)[:60]}"
            assert SECRET not in body
            if not wrong and answer.status in (200, 206):
                whole = headers == {} or answer.status == 200
                assert body == content if whole else body in content, f"{headers}"
    return sent


async def half_open(target: Target, random: Random) -> int:
    """Connections that say nothing, half of something, or something slowly; then vanish."""
    whole = f"GET /status HTTP/1.1\r\nHost: h\r\nAuthorization: {'x' * 200}\r\n\r\n".encode()
    writers = []
    try:
        for _ in range(20):
            tls = target.tls if random.random() < 0.3 else None
            with contextlib.suppress(OSError):
                place = target.place(random)
                _, writer = await asyncio.wait_for(_open(place, tls), PATIENCE_SECONDS)
                writers.append(writer)
                writer.write(whole[: random.randrange(len(whole))])
        for _ in range(5):
            for writer in writers:
                writer.write(b"x")
            await asyncio.sleep(0.02)
    finally:
        for writer in writers:
            _abort(writer)
    return len(writers)


ATTACKS: Final[tuple[Attack, ...]] = (frames, frames, broken_frames, requests, ranges, half_open)


async def _connect(
    target: Target, place: tuple[str, int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(_open(place, target.tls), PATIENCE_SECONDS)


async def _open(place: tuple[str, int], tls: ssl.SSLContext | None) -> Any:
    return await asyncio.open_connection(*place, ssl=tls)


async def _drained(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, random: Random
) -> bytes:
    """What comes back until the other side hangs up, or has no more to say for a moment."""
    answer = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
        if random.random() < 0.5 and writer.can_write_eof():
            writer.write_eof()
        while len(answer) < 2**20:
            part = await asyncio.wait_for(reader.read(2**16), 0.2)
            if not part:
                break
            answer += part
    return answer


def _abort(writer: asyncio.StreamWriter) -> None:
    """A reset, in place of a polite end."""
    plain = writer.get_extra_info("socket")  # None once TLS has let go of it
    with contextlib.suppress(OSError, AttributeError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
