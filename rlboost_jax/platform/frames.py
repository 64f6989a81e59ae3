"""Frames of MessagePack between processes: a body's length, 4 bytes little-endian, then the body.

Each side bounds the length before it takes memory for the body. Where a transport has messages of
its own, such as a WebSocket, a message is a body without the length.
"""

import asyncio
import os
import select
import socket
import struct
import time
from typing import Any, Final, Generic, TypeVar

import msgspec

MAX_BODY_BYTES: Final = 64 * 2**20
_LENGTH: Final = struct.Struct("<I")
Record = TypeVar("Record")


class Unsendable(ValueError):
    """A record holds what no frame can carry: columns of a data set, for one."""


class FrameTooLong(Unsendable):
    """A frame exceeds its size limit."""


def body_of(record: msgspec.Struct, *, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Encode a record. Arrays and their scalars become plain values. Raises Unsendable."""
    try:
        body = msgspec.msgpack.encode(record, enc_hook=_plain)
    except (OverflowError, RecursionError, TypeError, UnicodeError) as error:
        raise Unsendable(f"it cannot be sent to another process: {error}") from None
    _check(len(body), max_bytes)
    return body


def framed(body: bytes) -> bytes:
    """Put the length in front of a body."""
    return _LENGTH.pack(len(body)) + body


def frame(record: msgspec.Struct, *, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Encode a record as a frame. Raises Unsendable."""
    return framed(body_of(record, max_bytes=max_bytes))


def send(file: int, record: msgspec.Struct, *, timeout: float | None = None) -> None:
    """Write a whole frame to a pipe or socket.

    Raises:
        TimeoutError: nobody has read it in `timeout` seconds.
        Unsendable: nothing was written.
    """
    write_whole(file, frame(record), None if timeout is None else time.monotonic() + timeout)


def receive(
    file: int,
    kind: type[Record],
    *,
    timeout: float | None = None,
    max_bytes: int = MAX_BODY_BYTES,
) -> Record | None:
    """Wait for the next frame of a pipe or socket; None if the other side has closed.

    Raises:
        TimeoutError: it was not whole in `timeout` seconds.
        FrameTooLong, msgspec.ValidationError, msgspec.DecodeError: the frame is invalid.
    """
    end = None if timeout is None else time.monotonic() + timeout
    header = read_exactly(file, _LENGTH.size, end)
    body = None if header is None else read_exactly(file, _body_bytes(header, max_bytes), end)
    return None if body is None else msgspec.msgpack.decode(body, type=kind)


def write_whole(file: int, data: bytes, end: float | None) -> None:
    """Write all of it to a pipe or socket.

    Args:
        end: by the monotonic clock, for all to be written. Raises TimeoutError.
    """
    view = memoryview(data)
    while view:
        _wait(file, select.POLLOUT, end)
        view = view[os.write(file, view[: select.PIPE_BUF]) :]


def read_exactly(file: int, count: int, end: float | None) -> bytes | None:
    """Read so many bytes of a pipe or socket; None if the other side closes before.

    Args:
        end: by the monotonic clock, for all to have come. Raises TimeoutError.
    """
    data = bytearray()
    while len(data) < count:
        _wait(file, select.POLLIN, end)
        part = os.read(file, min(count - len(data), 2**16))
        if not part:
            return None
        data += part
    return bytes(data)


async def read_body(
    stream: asyncio.StreamReader, *, max_bytes: int = MAX_BODY_BYTES
) -> bytes | None:
    """Read the body of a stream's next frame; None if the other side has closed.

    Raises:
        FrameTooLong
    """
    try:
        header = await stream.readexactly(_LENGTH.size)
        return await stream.readexactly(_body_bytes(header, max_bytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def receive_body(end: socket.socket, *, max_bytes: int = MAX_BODY_BYTES) -> bytes | None:
    """Read the body of the next frame, and no byte after it, from a socket that does not block.

    Returns None if the other side has closed.

    Raises:
        FrameTooLong, ConnectionError
    """
    header = await _exactly_from(end, _LENGTH.size)
    return None if header is None else await _exactly_from(end, _body_bytes(header, max_bytes))


class FrameDecoder(Generic[Record]):
    """Decoder of frames that arrive in pieces."""

    def __init__(self, kind: type[Record], *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._decoder, self._max_bytes = msgspec.msgpack.Decoder(kind), max_bytes
        self._data = bytearray()

    def take(self, data: bytes) -> list[Record]:
        """Add received bytes; returns the records that are complete.

        Raises:
            FrameTooLong, msgspec.ValidationError, msgspec.DecodeError: a frame is invalid.
        """
        self._data += data
        records: list[Record] = []
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _body_bytes(self._data[: _LENGTH.size], self._max_bytes)
            if len(self._data) < end:
                break
            records.append(self._decoder.decode(bytes(self._data[_LENGTH.size : end])))
            del self._data[:end]
        return records


def _body_bytes(header: bytes | bytearray, max_bytes: int) -> int:
    (length,) = _LENGTH.unpack(header)
    _check(length, max_bytes)
    return int(length)


def _check(length: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise FrameTooLong(f"a frame of {length} bytes, {max_bytes} allowed")


async def _exactly_from(end: socket.socket, count: int) -> bytes | None:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count:
        part = await loop.sock_recv(end, count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _wait(file: int, event: int, end: float | None) -> None:
    """Wait until a file can be read, or takes PIPE_BUF bytes. Raises TimeoutError after `end`."""
    poll = select.poll()
    poll.register(file, event)
    if not poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError


def _plain(value: Any) -> Any:
    """Convert arrays and their scalars, as data sets hold them, to plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain value")
