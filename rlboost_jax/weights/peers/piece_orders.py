"""Orders of a server to its process that serves pieces: frames of a pipe, first a `PiecesSetup`."""

import asyncio
from typing import Final

import msgspec

from rlboost_jax.platform.frames import frame, read_body

MAX_ORDER_BYTES: Final = 64 * 2**20  # the pieces of one version; announcements are no longer


class PiecesSetup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First order. Its secrets go over the pipe: command lines are readable by others."""

    key: bytes  # of transfer tokens
    certificate: bytes  # DER; b"": no TLS, within tests
    private: str  # PEM
    authority: str  # PEM: of the run
    line: int  # descriptor of a socket over which blocks of shared memory come
    bytes_per_second: float  # to all others together; 0: no limit


class Place(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where the bytes of a piece are: an array of bytes, in a block of shared memory."""

    block: int
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A version whose pieces arrive; none is there yet."""

    root: str
    blocks: tuple[int, ...]  # numbers of those that it is in; they have been sent
    places: tuple[Place, ...]  # of its pieces


class Held(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pieces, by number, that are there and verified."""

    root: str
    numbers: tuple[int, ...]


class DropVersion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Serve a version no more."""

    root: str


PieceOrder = PiecesSetup | Hold | Held | DropVersion
_decode = msgspec.msgpack.Decoder(PieceOrder).decode


def piece_order_frame(order: PieceOrder) -> bytes:
    return frame(order, max_bytes=MAX_ORDER_BYTES)


async def read_piece_order(pipe: asyncio.StreamReader) -> PieceOrder | None:
    """The next order; None once the server is gone. Raises ValueError: what came is no order."""
    body = await read_body(pipe, max_bytes=MAX_ORDER_BYTES)
    return None if body is None else _decode(body)
