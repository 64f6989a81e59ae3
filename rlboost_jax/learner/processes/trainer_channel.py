"""Messages between the processes of a trainer: frames over TLS (`handshake.py`).

A frame is its length in 8 bytes and a MessagePack value, in which NumPy arrays travel as
extensions in NumPy's own format. Nothing else can be in one, and so nothing can be run by it.

One thread may send while another receives, which OpenSSL does not allow: no call of it waits, each
has the connection to itself, and what has to be waited for is waited for outside.
"""

import contextlib
import io
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

_LENGTH: Final = struct.Struct(">Q")
_ARRAY: Final = 1  # code of the extension
_MOST_BYTES: Final = 2**32  # of a frame; the trajectories of a micro-batch have millions
_PART_BYTES: Final = 2**18  # sent or received in one call
_LOOK_SECONDS: Final = 1.0  # while nothing comes: whether this side was closed


class PeerGone(ConnectionError):
    """The other side ended, was cut off, or sent an invalid frame."""


class TrainerChannel:
    """One side of a connection. Sends and receives block, and raise PeerGone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._calls = threading.Lock()  # held for a call that does not wait
        self._sending = threading.Lock()  # held for a frame
        self._closed = False

    def send(self, message: Any) -> None:
        """Send None, bool, int, float, str, lists, dicts, dataclasses and NumPy arrays."""
        frame = msgspec.msgpack.encode(message, enc_hook=_encode)
        with self._sending:
            for part in (_LENGTH.pack(len(frame)), frame):
                left = memoryview(part)
                while left:
                    piece = left[:_PART_BYTES]
                    left = left[self._at_once(self._socket.send, piece, select.POLLOUT, None) :]

    def receive(self, *, seconds: float | None = None, most_bytes: int = _MOST_BYTES) -> Any:
        """Wait for the next message.

        Args:
            seconds: to wait for it; None is for ever.
            most_bytes: that it may have.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > most_bytes:
            raise PeerGone(f"a frame of {length:,} bytes is none of ours")
        frame = self._read(length, deadline)
        try:
            return msgspec.msgpack.decode(frame, ext_hook=_decode)
        except Exception as error:  # of several kinds and modules, whatever a frame may hold
            raise PeerGone(f"a frame that is none of ours: {type(error).__name__}") from error

    def close(self) -> None:
        """Close the connection; a thread waiting in `receive` is woken."""
        self._closed = True
        with contextlib.suppress(OSError):  # the other side was first
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        with self._calls:
            self._socket.close()

    def _read(self, length: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < length:
            most = min(length - len(data), _PART_BYTES)
            part = self._at_once(self._socket.recv, most, select.POLLIN, deadline)
            if not part:
                raise PeerGone("the connection was closed")
            data += part
        return bytes(data)

    def _at_once(
        self, call: Callable[[Any], Any], argument: Any, event: int, deadline: float | None
    ) -> Any:
        """Repeat a non-blocking call until it succeeds, waiting for `event` or as TLS asks."""
        while True:
            wanted = event
            try:
                with self._calls:
                    return call(argument)
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            except BlockingIOError:
                pass
            except OSError as error:
                raise PeerGone(str(error)) from error
            self._wait(wanted, deadline)

    def _wait(self, event: int, deadline: float | None) -> None:
        poll, seconds = select.poll(), _LOOK_SECONDS
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
            if seconds <= 0:
                raise PeerGone("it was silent for too long")
        with self._calls:
            if self._closed or self._socket.fileno() < 0:
                raise PeerGone("the connection was closed")
            poll.register(self._socket, event)
        poll.poll(1000 * seconds)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        return msgspec.msgpack.Ext(_ARRAY, stream.getvalue())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):  # that nobody may change
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is not sent between processes")


def _decode(code: int, data: memoryview) -> np.ndarray:
    if code != _ARRAY:
        raise PeerGone(f"extension {code} is none of ours")
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array
