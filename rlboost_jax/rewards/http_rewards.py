"""Reward by an HTTP service: POST a response or a group, and get its rewards.

Request:   {"prompts": [text], "completions": [text], "columns": {name: [value]}}
Response:  {"rewards": [number or null]}

With `per: "group"` each list has an entry for every response to the prompt, in sample order.

A request that fails in a way that may pass (no connection, `PASSING`, no answer in time) is made
again with growing pauses. What fails for good costs its own response only.
"""

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.reward_frames import Found, RewardJob, RewardOutcome, all_failed
from rlboost_jax.settings.foreign_keys import report_unknown, unknown_keys
from rlboost_jax.settings.rewards_config import RewardConfig

OPTIONS: Final = {
    "url": "",
    "token_env": "",  # environment variable with the bearer token, which no file ever holds
    "retries": 4,
    "first_pause_seconds": 0.5,  # doubles with every retry
    "max_concurrent": 32,  # jobs under way
    "max_bytes": 2**20,  # of a request, and of an answer
}
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_ANSWER: Final = ("rewards",)  # keys of an answer that are read
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class RewardService:
    """Client of one service, in one event loop; `time_limit_seconds` is for each attempt.

    Attributes:
        max_concurrent: jobs that it may have at a time.
    """

    def __init__(self, reward: RewardConfig) -> None:
        """Check the settings. Raises ConfigError."""
        options = _options(reward)
        self._url, self._name, self._told = str(options["url"]), reward.shown_as, False
        self._retries = int(options["retries"])
        self._first_pause = float(options["first_pause_seconds"])
        self._max_bytes = int(options["max_bytes"])
        self._limit = reward.time_limit_seconds
        self._headers = _headers(reward, self._url, str(options["token_env"]))
        self.max_concurrent = int(options["max_concurrent"])
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections; requests in progress fail."""
        if self._session is not None:
            await self._session.close()

    async def judged(self, job: RewardJob) -> tuple[Found, ...]:
        """Outcomes of the one function for a job."""
        return (await self._found(job),)

    async def _found(self, job: RewardJob) -> Found:
        count = len(job.responses)
        columns = {name: [value] * count for name, value in job.columns.items()}
        columns["completion_ids"] = [list(response.completion_ids) for response in job.responses]
        columns["finished"] = [response.finished for response in job.responses]
        asked = {
            "prompts": [job.prompt] * count,
            "completions": [response.completion for response in job.responses],
            "columns": columns,
        }
        try:
            body = json.dumps(asked, default=_text).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return all_failed(job, f"a column cannot be sent to the service: {error}")
        if len(body) > self._max_bytes:
            return all_failed(job, f"a request of {len(body)} bytes, max_bytes {self._max_bytes}")
        fault = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(backoff_seconds(attempt - 1, first=self._first_pause))
            try:
                async with asyncio.timeout(self._limit):
                    return await self._post(body, job)
            except Passing as error:
                fault = str(error)
            except TimeoutError:
                fault = f"no answer in {self._limit:g} s"
            except aiohttp.ClientError as error:
                fault = f"{type(error).__name__}: {error}"
        return all_failed(job, f"{fault}; gave up after {self._retries + 1} attempts")

    async def _post(self, body: bytes, job: RewardJob) -> Found:
        """Make one request. Raises Passing, or what aiohttp does."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={**self._headers, "Content-Type": "application/json"},
                connector=aiohttp.TCPConnector(limit=self.max_concurrent),
                timeout=aiohttp.ClientTimeout(total=None),  # the run's own limit holds
            )
        # A redirect would take the token along to wherever it points.
        async with self._session.post(self._url, data=body, allow_redirects=False) as response:
            if response.status in PASSING:
                raise Passing(f"status {response.status}")
            if response.status != 200:
                return all_failed(job, f"status {response.status}")
            data = await response.content.read(self._max_bytes + 1)
            while len(data) <= self._max_bytes and not response.content.at_eof():
                data += await response.content.read(self._max_bytes + 1 - len(data))
            if len(data) > self._max_bytes:
                fault = f"an answer of more than {self._max_bytes} bytes (max_bytes)"
                return all_failed(job, fault)
            return _found_in(data, job, self._report)

    def _report(self, answer: Mapping[str, Any]) -> None:
        """Warn once about unread keys of an answer, whatever they are."""
        if not self._told and unknown_keys(answer, _ANSWER):
            self._told = True
            report_unknown(answer, _ANSWER, f"rewards.functions {self._name!r}, its answer")


def _text(value: object) -> str:
    """Text of a column's value that JSON does not have."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


class Passing(RuntimeError):
    """The service asks for a retry."""


def _found_in(
    data: bytes, job: RewardJob, report: Callable[[Mapping[str, Any]], None] = lambda answer: None
) -> Found:
    """Outcomes of an answer, or the same fault for each response.

    Args:
        report: is given an answer that is understood.
    """
    try:
        answer = foreign_json.decode(data, "an answer", dict)
        values = answer["rewards"]
        if not isinstance(values, list) or len(values) != len(job.responses):
            raise TypeError
        found = tuple(_outcome(value) for value in values)
    except (ValueError, KeyError, TypeError):
        count = len(job.responses)
        wanted = "[number]" if count == 1 else f"[{count} numbers]"
        return all_failed(job, f'answered {data[:60]!r}, not {{"rewards": {wanted}}}')
    report(answer)
    return found


def _outcome(value: object) -> RewardOutcome:
    """Convert a reward. Raises TypeError, OverflowError."""
    if value is None:
        return RewardOutcome()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    number = float(value)
    return (
        RewardOutcome(value=number)
        if math.isfinite(number)
        else RewardOutcome(fault=f"answered {number}")
    )


def _options(reward: RewardConfig) -> dict[str, Any]:
    place = f"rewards.functions {reward.shown_as!r}"
    for name in reward.options:
        if name not in OPTIONS:
            raise ConfigError(f"{place} takes no option {name!r}; it takes {', '.join(OPTIONS)}")
    options: dict[str, Any] = {**OPTIONS, **reward.options}
    _check_url(place, options["url"])
    for name, least in (("retries", 0), ("max_concurrent", 1), ("max_bytes", 1)):
        if not isinstance(options[name], int) or options[name] < least:
            raise ConfigError(f"{place}: {name} is {options[name]!r}; choose {least} or more")
    pause = options["first_pause_seconds"]
    if not isinstance(pause, int | float) or not 0 <= pause < math.inf:
        raise ConfigError(f"{place}: first_pause_seconds is {pause!r}; choose 0 or more")
    return options


def _check_url(place: str, url: object) -> None:
    """Raise ConfigError if it is no address, or holds a secret that would be written down."""
    try:
        parts = urlsplit(str(url))
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named or not _visible(str(url)):
        raise ConfigError(f"{place}: url is {url!r}; give it as https://host/path")
    if parts.username is not None:
        raise ConfigError(
            f"{place}: the url of {parts.hostname} has a name or password in it, which every "
            "record of the configuration would show; give a token by token_env"
        )


def _headers(reward: RewardConfig, url: str, token_env: str) -> dict[str, str]:
    if not token_env:
        return {}
    place = f"rewards.functions {reward.shown_as!r}"
    token = os.environ.get(token_env, "").strip()  # a file it was read from ends in a newline
    if not token:
        raise ConfigError(
            f"{place}: the environment has no {token_env} (token_env); set it to the service's "
            "token"
        )
    if not _visible(token):
        raise ConfigError(
            f"{place}: {token_env} (token_env) holds a character that no header can; set it to "
            "the service's token alone"
        )
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ConfigError(
            f"{place}: the token would cross the network for anyone to read; use https for "
            f"{parts.hostname}"
        )
    return {"Authorization": f"Bearer {token}"}


def _visible(text: str) -> bool:
    """Whether a text is ASCII without white space, as an address or a token must be."""
    return all("!" <= character <= "~" for character in text)
