"""What is asked about a response, and what comes back."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A response as reward functions see it."""

    prompt: str
    completion: str  # without special tokens
    completion_ids: tuple[int, ...]
    finished: bool  # ended by a stop id, not cut off
    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    reward: float  # weighted sum of the components
    accuracy: float  # the first component: what evaluation reports
    # What each function returned, before its weight; the fallback of one that failed. One that
    # returned None says nothing about this response and is absent.
    components: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    faults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # of which, why
    # Why the response does not count in its group, for reasons outside of it; "": it counts.
    left_out: str = ""


def at_once(verdict: Verdict) -> Future[Verdict]:
    """For rewards that are known without waiting."""
    future: Future[Verdict] = Future()
    future.set_result(verdict)
    return future
