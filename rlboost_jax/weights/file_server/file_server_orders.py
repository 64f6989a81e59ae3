"""Orders of a manager to its file server: frames of a pipe, first a `FileServerSetup`."""

import asyncio
from typing import Final

import msgspec

from rlboost_jax.messages import MAX_FRAME_BYTES
from rlboost_jax.platform.frames import frame, read_body
from rlboost_jax.weights.serve import ServedVersion

# One version's paths come out of one frame of the trainer's; of the older ones few are kept.
MAX_ORDER_BYTES: Final = 8 * MAX_FRAME_BYTES


class FileServerSetup(msgspec.Struct, frozen=True, kw_only=True, tag="Setup"):
    """First order.

    Its secrets go over the pipe: command lines and environments are readable by others.
    """

    server_token: str
    trainer_token: str
    authority: str  # the folder with the manager's certificate; "": no TLS, within tests
    compiled: str = ""  # the folder with compiled programs; "": none are served
    wheels: str = ""  # fleet.wheelhouse; "": the same


class PageSetup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set-up of the page's process, which gets no other order."""

    workdir: str
    token: str
    certificates: str  # the folder with the page's
    hosts: tuple[str, ...] = ()  # names by which a browser may ask for it


class Serve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Serve these versions, and no others."""

    versions: tuple[ServedVersion, ...]


Order = FileServerSetup | PageSetup | Serve
_decode = msgspec.msgpack.Decoder(Order).decode


def order_frame(order: Order) -> bytes:
    return frame(order, max_bytes=MAX_ORDER_BYTES)


async def read_order(pipe: asyncio.StreamReader) -> Order | None:
    """The next order; None once the manager is gone.

    Raises:
        ValueError: what came is no order.
    """
    body = await read_body(pipe, max_bytes=MAX_ORDER_BYTES)
    return None if body is None else _decode(body)
