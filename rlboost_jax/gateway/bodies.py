"""Bodies of calls: read within what the listener holds, and decoded to what they say."""

import asyncio
import contextlib
from typing import Any, Final

import msgspec
from aiohttp import web

from rlboost_jax.gateway.errors import ApiError, invalid
from rlboost_jax.gateway.limits import (
    MAX_BODY_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    NUMBER_BYTES,
    VALUE_BYTES,
)
from rlboost_jax.manager.service.bytes_in_flight import HeldBytes, read_body
from rlboost_jax.settings.readable import unreadable_places
from rlboost_jax.storage import foreign_json
from rlboost_jax.storage.bounded_files import Unreadable

BODY_SECONDS: Final = 60.0  # for a body to arrive


async def read_object(
    request: web.Request, held: HeldBytes, *, or_nothing: bool = False
) -> dict[str, Any]:
    """The body, decoded. It is held for as long as the call, by what it takes up decoded.

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
    """A JSON object. Raises ApiError."""
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
    """What decoded JSON takes up, in units of `HELD_PER_BYTE` bytes of memory.

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
    """Name the text of a body that was cut within a character, as JavaScript cuts them, or ""."""
    with contextlib.suppress(Unreadable):
        value = foreign_json.decode(body, "the body", object, halves=True)
        for place in unreadable_places(value):
            return f"{place[:200]} has half of a surrogate pair: it was cut within a character"
    return ""
