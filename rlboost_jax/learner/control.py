"""What the processes of a trainer say to each other: framed messages and raw arrays over TCP.

A frame is its length in 8 bytes and a MessagePack value, in which NumPy arrays travel as
extensions (dtype, shape, bytes). Nothing else can be in one, and so nothing can be run by it.
Arrays by themselves follow a frame that has described them, in as many bytes as they have.
"""

import contextlib
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
    """One side of a connection. Sends and receives block."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Any) -> None:
        """Of None, bool, int, float, str, bytes, lists, dicts and NumPy arrays.

        Raises PeerGone.
        """
        frame = msgspec.msgpack.encode(message, enc_hook=_encode)
        self._send(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> Any:
        """Raises PeerGone."""
        (length,) = _LENGTH.unpack(self._receive(bytearray(_LENGTH.size)))
        if length > _MOST_BYTES:
            raise PeerGone(f"a frame of {length:,} bytes is none of ours")
        return msgspec.msgpack.decode(self._receive(bytearray(length)), ext_hook=_decode)

    def send_array(self, array: np.ndarray) -> None:
        """Its bytes and nothing else; raises PeerGone."""
        self._send(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def receive_array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Raises PeerGone."""
        array = np.empty(shape, dtype)
        self._receive(array.reshape(-1).view(np.uint8).data)
        return array

    def close(self) -> None:
        """Whoever waits in `receive` hears of it."""
        with contextlib.suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, data: Any) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise PeerGone(str(error)) from error

    def _receive(self, buffer: Any) -> Any:
        view = memoryview(buffer)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise PeerGone(str(error)) from error
            if not count:
                raise PeerGone("the connection was closed")
            view = view[count:]
        return buffer


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        head = msgspec.msgpack.encode((array.dtype.str, array.shape))
        return msgspec.msgpack.Ext(_ARRAY, _LENGTH.pack(len(head)) + head + array.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):  # that nobody may change
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is not sent between processes")


def _decode(code: int, data: memoryview) -> np.ndarray:
    if code != _ARRAY:
        raise PeerGone(f"extension {code} is none of ours")
    (length,) = _LENGTH.unpack(data[: _LENGTH.size])
    head, body = data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
    dtype, shape = msgspec.msgpack.decode(head, type=tuple[str, tuple[int, ...]])
    return np.frombuffer(bytes(body), dtype).reshape(shape)
