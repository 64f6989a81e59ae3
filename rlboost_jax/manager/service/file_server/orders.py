"""What a manager tells its file server: frames of MessagePack over a pipe, first a `Setup`.

A frame is its payload's length, 4 bytes little-endian, then the payload.
"""

import asyncio
from typing import Final

import msgspec

from rlboost_jax.messages import MAX_FRAME_BYTES
from rlboost_jax.weights.serve import ServedVersion

# One version's paths come out of one frame of the trainer's; of the older ones few are kept.
MAX_ORDER_BYTES: Final = 8 * MAX_FRAME_BYTES


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Secrets go over the pipe: a command line and an environment can be read by others."""

    server_token: str
    trainer_token: str
    authority: str  # the folder with the manager's certificate; "": no TLS, within tests
    compiled: str = ""  # the folder with compiled programs; "": none are served
    wheels: str = ""  # fleet.wheelhouse; "": the same


class PageSetup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Of the page's process, which gets no other order."""

    workdir: str
    token: str
    certificates: str  # the folder with the page's
    hosts: tuple[str, ...] = ()  # names by which a browser may ask for it


class Serve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let these be fetched, and no others."""

    versions: tuple[ServedVersion, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Setup | PageSetup | Serve).decode


def frame(order: Setup | PageSetup | Serve) -> bytes:
    payload = _encode(order)
    return len(payload).to_bytes(4, "little") + payload


async def read_order(pipe: asyncio.StreamReader) -> Setup | PageSetup | Serve | None:
    """The next order; None once the manager is gone.

    Raises:
        ValueError: what came is no order.
    """
    try:
        length = int.from_bytes(await pipe.readexactly(4), "little")
        if length > MAX_ORDER_BYTES:
            raise ValueError(f"an order of {length} bytes; the limit is {MAX_ORDER_BYTES}")
        return _decode(await pipe.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
