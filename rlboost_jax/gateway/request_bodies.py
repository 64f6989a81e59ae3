"""Request bodies: read within the listener's limits, and decoded."""

import asyncio
import contextlib
from typing import Any, Final

import msgspec
from aiohttp import web

from rlboost_jax.gateway.api_errors import ApiError, invalid
from rlboost_jax.gateway.gateway_limits import (
    MAX_BODY_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    NUMBER_BYTES,
    VALUE_BYTES,
)
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.readable import unreadable_places
from rlboost_jax.trust.bytes_in_flight import HeldBytes, read_body

BODY_SECONDS: Final = 60.0  # for a body to arrive


async def read_object(
    request: web.Request, held: HeldBytes, *, or_nothing: bool = False
) -> dict[str, Any]:
    """Read and decode the body, whose decoded size is accounted for as long as the call.

    Args:
        or_nothing: no body is an empty object.

    Raises:
        ApiError, HTTPException: there is no such body, or no room for it.
    """
    body = await _body(request, held)
    value = decode(bytes(body) or b"{}") if or_nothing else decode(bytes(body))
    del body  # nobody needs it while the call waits
    try:
        await held.take(decoded_bytes(value) - held.size)
    except BaseException:
        value.clear()  # see `read_body`
        raise
    return value


async def _body(request: web.Request, held: HeldBytes) -> bytearray:
    if request.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
        raise ApiError(415, "unsupported_encoding", "bodies are taken as they are, not compressed")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request, held, MAX_BODY_BYTES)
    except TimeoutError:
        raise ApiError(
            408, "request_timeout", f"the body took more than {BODY_SECONDS:g} s"
        ) from None


def decode(body: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises ApiError."""
    try:
        value = msgspec.json.decode(body)  # noqa: TID251  (a bounded body, and JSON to the letter)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(_half_of_a_pair(body) or f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    if foreign_json.deeper(value, MAX_DEPTH):
        raise invalid(f"the body has lists in lists deeper than {MAX_DEPTH}")
    return value


def decoded_bytes(value: Any) -> int:
    """Size of decoded JSON, in units of `HELD_PER_BYTE` bytes of memory.

    An empty list is two characters of JSON and a hundred bytes of memory, so everything counts for
    `VALUE_BYTES` at least, and a number for `NUMBER_BYTES`.

    Raises:
        ApiError: there are more values than any call has reason for.
    """
    values, size, rest = 0, 0, [value]
    while rest:
        found = rest.pop()
        if isinstance(found, int | float):
            size += NUMBER_BYTES
            continue
        values += 1
        size += VALUE_BYTES
        if isinstance(found, str):
            size += len(found)
        elif isinstance(found, dict):
            values += len(found)
            size += len(found) * VALUE_BYTES + sum(map(len, found))
            rest.extend(found.values())
        elif isinstance(found, list):
            rest.extend(found)
        if values > MAX_VALUES:
            raise invalid(f"the body has over {MAX_VALUES:,} values, besides numbers")
    return size


def _half_of_a_pair(body: bytes) -> str:
    """Field whose text was cut within a character, as JavaScript cuts them; "" if none."""
    with contextlib.suppress(Unreadable):
        value = foreign_json.decode(body, "the body", object, halves=True)
        for place in unreadable_places(value):
            return f"{place[:200]} has half of a surrogate pair: it was cut within a character"
    return ""
