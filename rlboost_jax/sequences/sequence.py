"""Token ids, and of each whether it was *sampled* by the policy or *given* by somebody else.

A sequence is made of runs: a prompt, which is given, then in turn what the policy sampled and
what it was given (a tool's answer, a user's turn). Prompt and one response is the simplest case.
Only sampled tokens have a log-probability and a version, and only they are trained on. Given
ones are context.

Two rules make one description of each sequence: no run is empty, and runs take turns. What is
given before anything is sampled is part of the prompt.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.sequences.identities import Version

# Numbers of tokens that are in turn of one origin and of the other.
Runs = tuple[Annotated[int, msgspec.Meta(ge=1, lt=2**31)], ...]


class BadSequence(ValueError):
    """Parts that do not make a sequence; the message says which, and what they are."""


class Run(NamedTuple):
    """Consecutive tokens of one origin."""

    sampled: bool
    start: int  # in the sequence
    tokens: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequence:
    """T tokens, N of them sampled. It is immutable: `with_*` return longer ones.

    Attributes:
        tokens: all of them.
        runs: their numbers, in turn given and sampled; the first is the prompt's.
        logprobs: of the sampled ones, nats, as recorded when they were sampled.
        versions: (version, number of sampled tokens), in token order.
        routes: [positions, layers, experts] of all positions before the last sampled token's, the
            prompt's included, see `settings/routing.py`; None: not recorded.

    Raises:
        BadSequence: the parts contradict each other.
    """

    tokens: NDArray[np.int32]  # [T]
    runs: Runs
    logprobs: NDArray[np.float32]  # [N]
    versions: tuple[tuple[Version, int], ...]
    routes: NDArray[np.unsignedinteger] | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "logprobs", "routes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _read_only(getattr(self, name)))
        if not self.runs or min(self.runs) < 1 or sum(self.runs) != len(self.tokens):
            raise BadSequence(
                f"runs of {_listed(self.runs)} tokens do not make up a sequence of "
                f"{len(self.tokens)}; the first is the prompt's, and each needs at least one"
            )
        if len(self.logprobs) != self.num_sampled:
            raise BadSequence(
                f"{len(self.logprobs)} log-probabilities for {self.num_sampled} sampled tokens"
            )
        counts = [count for _, count in self.versions]
        if min(counts, default=1) < 1 or sum(counts) != self.num_sampled:
            raise BadSequence(
                f"versions of {_listed(counts)} tokens for {self.num_sampled} sampled ones"
            )
        before_last = max(0, self.trained_length - 1)
        if self.routes is not None and len(self.routes) != before_last:
            raise BadSequence(
                f"routes of {len(self.routes)} positions; {before_last} are before the last "
                "sampled token"
            )

    @classmethod
    def of_prompt(cls, prompt: ArrayLike) -> "Sequence":
        """Make a sequence of a prompt alone."""
        tokens = np.asarray(prompt, np.int32)
        nothing = np.zeros(0, np.float32)
        return cls(tokens=tokens, runs=(len(tokens),), logprobs=nothing, versions=())

    @classmethod
    def of_response(
        cls,
        prompt: ArrayLike,
        response: ArrayLike,
        logprobs: ArrayLike,
        *,
        version: Version,
        routes: NDArray[np.unsignedinteger] | None = None,
    ) -> "Sequence":
        """Make the simplest sequence: a prompt, and one response that one version sampled."""
        return cls.of_prompt(prompt).with_sampled(
            response, logprobs, version=version, routes=routes
        )

    def with_sampled(
        self,
        tokens: ArrayLike,
        logprobs: ArrayLike,
        *,
        version: Version,
        routes: NDArray[np.unsignedinteger] | None = None,
    ) -> "Sequence":
        """Append tokens of the policy.

        Args:
            routes: of the positions that no routes are of yet, up to the one before the last
                of these tokens: as many as these tokens, and one for each that was given since
                the last sampled one (of a prompt one less).
        """
        new = np.asarray(tokens, np.int32)
        if len(new) == 0:
            return self
        if self.num_sampled and (self.routes is None) != (routes is None):
            raise BadSequence("routes of some sampled tokens only")
        if self.routes is not None and routes is not None:
            routes = np.concatenate([self.routes, routes])
        versions, count = self.versions, len(new)
        if versions and versions[-1][0] == version:
            *before, (_, known) = versions
            versions, count = tuple(before), known + count
        if len(self.runs) % 2:
            runs = (*self.runs, len(new))
        else:  # the last run was sampled, too
            runs = (*self.runs[:-1], self.runs[-1] + len(new))
        return replace(
            self,
            tokens=np.concatenate([self.tokens, new]),
            runs=runs,
            logprobs=np.concatenate([self.logprobs, np.asarray(logprobs, np.float32)]),
            versions=(*versions, (version, count)),
            routes=routes,
        )

    @property
    def num_sampled(self) -> int:
        return sum(self.runs[1::2])

    @property
    def trained_length(self) -> int:
        """Tokens up to the last sampled one; given ones after it are context of none."""
        if len(self.runs) < 2:
            return 0
        return len(self.tokens) - (self.runs[-1] if len(self.runs) % 2 else 0)

    @property
    def prompt(self) -> NDArray[np.int32]:
        return self.tokens[: self.runs[0]]

    @property
    def continuation(self) -> NDArray[np.int32]:
        """All tokens after the prompt, given or sampled."""
        return self.tokens[self.runs[0] :]

    @property
    def sampled_tokens(self) -> NDArray[np.int32]:
        return self.tokens[self.sampled_positions]

    @property
    def newest_turn(self) -> NDArray[np.int32]:
        """Last run of sampled tokens; empty before any was sampled."""
        turns = [run.tokens for run in self.split() if run.sampled]
        return turns[-1] if turns else self.tokens[:0]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[T] Which tokens were sampled."""
        return np.repeat(np.arange(len(self.runs)) % 2 == 1, self.runs)

    @property
    def sampled_positions(self) -> NDArray[np.int_]:
        """[N] Where the sampled tokens are."""
        return np.flatnonzero(self.mask)

    @property
    def token_versions(self) -> NDArray[np.int32]:
        """[N] The version that sampled it, for each sampled token."""
        versions = np.array([version for version, _ in self.versions], np.int32)
        return np.repeat(versions, [count for _, count in self.versions])

    def split(self) -> Iterator[Run]:
        """Yield the runs in order, the prompt first."""
        start = 0
        for place, count in enumerate(self.runs):
            yield Run(place % 2 == 1, start, self.tokens[start : start + count])
            start += count

    def digested(self) -> Iterator[bytes]:
        """Yield all bytes that a digest of the sequence covers, in an unambiguous order.

        For prompt and one response: four arrays, each after its length, and what routes there
        are. With more runs their lengths come before the routes; that they do follows from there
        being more tokens than log-probabilities.
        """
        for values, dtype in (
            (self.prompt, "<i4"),
            (self.continuation, "<i4"),
            (self.logprobs, "<f4"),
            (self.token_versions, "<i4"),
        ):
            data = np.asarray(values, dtype).tobytes()
            yield f"{len(data)}\n".encode() + data
        if len(self.runs) > 2:
            yield f"{_listed(self.runs)}\n".encode()
        if self.routes is not None:
            yield np.asarray(self.routes, "<u2").tobytes()


def runs_after_prompt(reported: Runs, num_tokens: int) -> Runs:
    """Return numbers of tokens, in turn sampled and given, from a message.

    Args:
        reported: () says that all were sampled.
        num_tokens: that they are about.

    Raises:
        BadSequence: they do not add up to these.
    """
    runs = reported or ((num_tokens,) if num_tokens else ())
    if min(runs, default=1) < 1 or sum(runs) != num_tokens:
        raise BadSequence(f"runs of {_listed(runs)} tokens do not make up {num_tokens}")
    return runs


def common_tokens(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Count the equal tokens that both begin with; int32 each."""
    count = min(len(one), len(other)) // 4
    ours, theirs = (np.frombuffer(data, np.int32, count) for data in (one, other))
    differs = np.flatnonzero(ours != theirs)
    return int(differs[0]) if len(differs) else count


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(map(str, counts)) or "no"


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
