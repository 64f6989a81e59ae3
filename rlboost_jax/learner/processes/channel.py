"""What the processes of a trainer say to each other: framed messages over TCP.

A frame is its length in 8 bytes and a MessagePack value, in which NumPy arrays travel as
extensions in NumPy's own format. Nothing else can be in one, and so nothing can be run by it.
"""

import contextlib
import io
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

_LENGTH: Final = struct.Struct(">Q")
_ARRAY: Final = 1  # code of the extension
_MOST_BYTES: Final = 2**32  # of a frame; the trajectories of a micro-batch have millions


class PeerGone(ConnectionError):
    """The other side ended, or was cut off."""


class Channel:
    """One side of a connection. Sends and receives block, and raise PeerGone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._file = connection, connection.makefile("rb")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Any) -> None:
        """Of None, bool, int, float, str, lists, dicts, dataclasses and NumPy arrays."""
        frame = msgspec.msgpack.encode(message, enc_hook=_encode)
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise PeerGone(str(error)) from error

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _MOST_BYTES:
            raise PeerGone(f"a frame of {length:,} bytes is none of ours")
        return msgspec.msgpack.decode(self._read(length), ext_hook=_decode)

    def close(self) -> None:
        """Whoever waits in `receive` hears of it."""
        with contextlib.suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, length: int) -> bytes:
        try:
            data = self._file.read(length)
        except OSError as error:
            raise PeerGone(str(error)) from error
        if len(data) < length:
            raise PeerGone("the connection was closed")
        return data


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
