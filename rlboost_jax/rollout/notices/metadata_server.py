"""Parts shared by all clouds' metadata servers: small answers, or none, from one address.

Nothing of it is trusted: an answer has a bounded size and a bounded time, redirects and
proxies are not followed, and whatever is not understood is `NoAnswer`.
"""

import math
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from rlboost_jax.messages import MAX_NOTICE_SECONDS
from rlboost_jax.platform import foreign_json
from rlboost_jax.settings.foreign_keys import report_unknown, unknown_keys

ADDRESS = "http://169.254.169.254"  # link-local; the same in all three clouds
CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 5.0  # unless the question itself waits for a change
MAX_ANSWER_BYTES = 2**18

T = TypeVar("T")
_TOLD: set[type] = set()  # records whose answers had keys that nobody knows


class NoAnswer(Exception):
    """The metadata server gave no answer, or none that is understood. It is asked again later."""


@dataclass(frozen=True, kw_only=True)
class CloudNotice:
    """A cloud's notice or hint about this machine."""

    seconds: float | None  # until it goes; None: it may, or it pauses
    reason: str


class NoticeSource(Protocol):
    """One kind of notice to watch."""

    name: str
    every_seconds: float  # between two looks

    async def look(self) -> Iterable[CloudNotice]:
        """Return what is new since the last look. It may wait for something new.

        Raises:
            NoAnswer.
        """
        ...


@dataclass(frozen=True)
class MetadataAnswer:
    status: int
    text: str
    headers: Mapping[str, str]
    at: float  # seconds since the epoch, by the clock of who answered if it says


class Metadata:
    """Client of a cloud's metadata server.

    Args:
        clock: this machine's, in seconds since the epoch; a cloud's own goes before it.
        answer_seconds: for a whole answer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str = ADDRESS,
        clock: Callable[[], float] = time.time,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._session, self._address, self._clock = session, address.rstrip("/"), clock

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        wait_seconds: float = 0.0,
    ) -> MetadataAnswer:
        """Request a path and return the answer, within bounds of size and time.

        Args:
            path: with its query.
            wait_seconds: how long the server itself may take by design.

        Raises:
            NoAnswer.
        """
        timeout = aiohttp.ClientTimeout(
            sock_connect=CONNECT_SECONDS, total=self._answer_seconds + wait_seconds
        )
        try:
            async with self._session.request(
                method,
                self._address + path,
                headers=dict(headers),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(body) <= MAX_ANSWER_BYTES and (
                    more := await response.content.read(MAX_ANSWER_BYTES + 1 - len(body))
                ):
                    body += more
                if len(body) > MAX_ANSWER_BYTES:
                    raise NoAnswer(f"{path}: more than {MAX_ANSWER_BYTES} bytes")
                at = _date(response.headers.get("Date", ""), self._clock())
                text = body.decode("utf-8", "replace")
                return MetadataAnswer(response.status, text, response.headers, at)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"{path}: {type(error).__name__}: {error}") from None


def decode(answer: MetadataAnswer, kind: type[T]) -> T:
    """The record in a JSON answer; keys that it does not have are reported. Raises NoAnswer."""
    try:
        values = foreign_json.decode(answer.text, "its answer", dict, limit=MAX_ANSWER_BYTES)
        found = msgspec.convert(values, kind)
    except ValueError as error:
        raise NoAnswer(f"not a {kind.__name__}: {error}") from None
    _report(values, kind)
    return found


def _report(values: Mapping[str, Any], kind: type) -> None:
    """Log a warning with the keys of an answer that its record does not have, the first time.

    The record's `ALSO` are further keys that need no word.
    """
    fields = msgspec.structs.fields(kind)
    known = (*(field.encode_name for field in fields), *getattr(kind, "ALSO", ()))
    if kind not in _TOLD and unknown_keys(values, known):
        _TOLD.add(kind)  # whatever comes later: answers are asked for every second
        report_unknown(values, known, f"the cloud's metadata, {kind.__name__}")
    for field in fields:
        for inner in typing.get_args(field.type):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                for each in values.get(field.encode_name, ()):
                    _report(each, inner)


def utc(text: str) -> float:
    """Seconds since the epoch of a time such as 2026-09-18T08:22:00Z; raises NoAnswer."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NoAnswer(f"{text[:40]!r} is no time") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def http_date(text: str) -> float:
    """Seconds since the epoch of a time such as Mon, 19 Sep 2026 18:29:47 GMT; raises NoAnswer."""
    at = _date(text, math.nan)
    if math.isnan(at):
        raise NoAnswer(f"{text[:40]!r} is no time")
    return at


def until(moment: float, answer: MetadataAnswer, most: float) -> float:
    """Seconds from an answer to a moment that it names, within what its cloud promises.

    A moment that has passed is now. One that is further away than any notice is the work of
    a wrong clock.
    """
    return min(max(0.0, moment - answer.at), most, MAX_NOTICE_SECONDS)


def _date(text: str, otherwise: float) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return otherwise
