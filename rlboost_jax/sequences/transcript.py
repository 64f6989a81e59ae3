"""A sequence in the making: tokens that were sampled, and tokens that were given in between.

It begins with a prompt. A *turn* is what the policy samples after that, until a stop id, a stop
string or a limit. What somebody gives then (a tool's output, a user's turn) begins the next one.

    transcript = Transcript(prompt)
    transcript.append(tokens, logprobs, "server-1")
    transcript.give(tokens)  # the next turn begins
    transcript.cut(length)  # keep the first tokens alone

Where it is made, and under which request, stands beside it, never in it. Lengths to cut at are
among all tokens after the prompt.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from rlboost_jax.sequences.endings import finish_reason, most_of_turn
from rlboost_jax.sequences.sequence import Runs, Sequence
from rlboost_jax.sequences.stop_table import stop_table

GIVEN = ""  # in the place of a sampler's name: nobody sampled these
POLICY = "policy"  # in the place of a sampler's name, where it does not matter which server it was


class TurnLimits(Protocol):
    """What ends a turn; `rlboost_jax.messages.Sampling` has it."""

    @property
    def max_tokens(self) -> int: ...

    @property
    def turn_tokens(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def stops(self) -> bytes: ...


class TurnTokens(NamedTuple):
    """What was sampled in a turn, and what it was answered; None: nothing yet."""

    sampled: bytes
    logprobs: bytes  # b"": not known
    given: bytes | None


class Transcript:
    """Tokens of a sequence, with their log-probabilities, routes and samplers.

    Attributes:
        prompt: int32 token ids, as all token ids here.
        tokens: all after the prompt.
        logprobs: float32, of the sampled tokens only.
        routes: of all positions before the newest sampled token's, where a run replays them.
        parts: (who sampled them or `GIVEN`, number of tokens), in order.
        turn: number of the one that is under way, or has ended and is not answered.
    """

    __slots__ = ("_sampled_before", "logprobs", "num_sampled", "num_tokens", "parts",
                 "prompt", "routes", "tokens", "turn")  # fmt: skip

    def __init__(self, prompt: bytes) -> None:
        """Start with the prompt alone."""
        self.prompt = prompt
        self.tokens, self.logprobs, self.routes = bytearray(), bytearray(), bytearray()
        self.num_tokens = 0
        self.num_sampled = 0  # of these
        self._sampled_before = 0  # in the turns before this one
        self.parts: list[tuple[str, int]] = []
        self.turn = 0

    @classmethod
    def from_runs(
        cls, prompt: bytes, tokens: bytes, runs: Runs, logprobs: bytes = b""
    ) -> "Transcript":
        """Make a transcript of the tokens after a prompt.

        Args:
            runs: of these tokens, in turn sampled and given, see `runs_after_prompt`.
            logprobs: of those that were sampled; b"": not known.
        """
        transcript, start = cls(prompt), 0
        for place, count in enumerate(runs):
            end = start + 4 * count
            if place % 2:
                transcript.give(tokens[start:end])
            else:
                sampled = 4 * transcript.num_sampled
                own = logprobs[sampled : sampled + end - start]
                transcript.append(tokens[start:end], own)
            start = end
        return transcript

    @classmethod
    def from_sequence(cls, sequence: Sequence) -> "Transcript":
        """Make a transcript of a finished sequence, without its routes."""
        prompt, tokens = (
            part.astype("<i4").tobytes() for part in (sequence.prompt, sequence.continuation)
        )
        logprobs = sequence.logprobs.astype("<f4").tobytes()
        return cls.from_runs(prompt, tokens, sequence.runs[1:], logprobs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transcript):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def copy(self) -> "Transcript":
        """Return another one with the same content."""
        return copy.deepcopy(self)

    @property
    def num_given(self) -> int:
        return self.num_tokens - self.num_sampled

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return len(self.prompt) // 4 + self.num_tokens

    @property
    def newest_given(self) -> int:
        """Number of tokens given since the last sampled one; 0 before any was sampled."""
        return self.parts[-1][1] if self.parts and self.parts[-1][0] == GIVEN else 0

    @property
    def newest_token(self) -> int:
        """Last token, the prompt's if none follows it."""
        return int.from_bytes(self.tokens[-4:] or self.prompt[-4:], "little", signed=True)

    @property
    def lead(self) -> int:
        """Number of routes that precede those of the next sampled tokens.

        They are the routes of the prompt, or of what was given since the last sampled token.
        """
        return self.newest_given if self.num_tokens else self.length - 1

    @property
    def runs(self) -> Runs:
        """Lengths of alternating sampled and given runs, as in messages: () if none were given."""
        if not self.turn:
            return ()
        origins = itertools.groupby(self.parts, lambda part: part[0] == GIVEN)
        return tuple(sum(count for _, count in parts) for _, parts in origins)

    @property
    def num_turns(self) -> int:
        """Number of turns that have any tokens."""
        return self.turn + (self.num_tokens > 0 and not self.newest_given)

    @property
    def samplers(self) -> tuple[str, ...]:
        """Names of those that sampled any of it, in order."""
        return tuple(dict.fromkeys([name for name, _ in self.parts if name != GIVEN]))

    def between(self, start: int, end: int) -> bytes:
        """Return tokens from a position to before another, both counted from the prompt's first."""
        prompt = len(self.prompt)
        start, end = 4 * start, 4 * end
        if end <= prompt:
            return self.prompt[start:end]
        return self.prompt[start:] + self.tokens[max(0, start - prompt) : end - prompt]

    def turns(self) -> Iterator[TurnTokens]:
        """Yield all turns that have any tokens."""
        runs = self.runs or ((self.num_tokens,) if self.num_tokens else ())
        start = sampled = 0
        for count, answer in itertools.zip_longest(runs[::2], runs[1::2]):
            end = start + count
            yield TurnTokens(
                bytes(self.tokens[4 * start : 4 * end]),
                bytes(self.logprobs[4 * sampled : 4 * (sampled + count)]),
                None if answer is None else bytes(self.tokens[4 * end : 4 * (end + answer)]),
            )
            start, sampled = end + (answer or 0), sampled + count

    def append(
        self, tokens: bytes, logprobs: bytes = b"", sampler: str = POLICY, routes: bytes = b""
    ) -> None:
        """Append tokens that `sampler` sampled.

        Args:
            logprobs: of these tokens; b"": nobody asks for those of this transcript.
        """
        count = len(tokens) // 4
        self.tokens += tokens
        self.logprobs += logprobs
        self.routes += routes
        self.num_tokens += count
        self.num_sampled += count
        if self.parts and self.parts[-1][0] == sampler:
            self.parts[-1] = sampler, self.parts[-1][1] + count
        else:
            self.parts.append((sampler, count))

    def give(self, tokens: bytes) -> None:
        """Append tokens given after a turn; the next turn begins."""
        count = len(tokens) // 4
        self.tokens += tokens
        self.num_tokens += count
        self.parts.append((GIVEN, count))
        self._sampled_before = self.num_sampled
        self.turn += 1

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens, and the routes up to before the last sampled of them."""
        if length >= self.num_tokens:
            return
        route_bytes = len(self.routes) // max(1, self.length - self.newest_given - 1)
        self.parts = parts = first_parts(self.parts, length)
        self.num_tokens = length
        self.num_sampled = sum(count for name, count in parts if name != GIVEN)
        self.turn = sum(name == GIVEN for name, _ in parts)
        newest = itertools.takewhile(lambda part: part[0] != GIVEN, reversed(parts))
        self._sampled_before = self.num_sampled - sum(count for _, count in newest)
        routed = self.length - self.newest_given - 1 if length else 0
        del self.tokens[4 * length :], self.logprobs[4 * self.num_sampled :]
        del self.routes[route_bytes * routed :]

    def room(self, limits: TurnLimits) -> int:
        """Return how many tokens may still be sampled in this turn."""
        if not limits.turn_tokens:  # asked for at every row of every message: no call
            return limits.max_tokens - self.num_sampled
        before = self._sampled_before
        most = most_of_turn(before, max_tokens=limits.max_tokens, turn_tokens=limits.turn_tokens)
        return most - (self.num_sampled - before)

    def turn_over(self, limits: TurnLimits) -> bool:
        """Return whether its last token ends its turn."""
        if self.turn and self.newest_given:
            return False
        sampled = self.num_sampled - self._sampled_before
        reason = finish_reason(
            self.newest_token,
            sampled,
            max_tokens=sampled + self.room(limits),
            stop_ids=limits.stop_ids,
        )
        if reason is None and limits.stops and sampled:
            return self._turn_end(b"", 1, limits.stops) is not None
        return reason is not None

    def own(self, tokens: bytes, limits: TurnLimits) -> int:
        """Count the new tokens that belong to its turn: those up to a stop string."""
        count = len(tokens) // 4
        if not limits.stops:
            return count
        end = self._turn_end(tokens, count, limits.stops)
        return count if end is None else end - (self.num_sampled - self._sampled_before)

    def _turn_end(self, tokens: bytes, new: int, stops: bytes) -> int | None:
        """Find the end of the turn within the new tokens, see `StopTable.end`."""
        table, before = stop_table(stops), self.num_sampled - self._sampled_before
        tail = min(before, table.reach)  # what lies before it says nothing of a string
        turn = bytes(self.tokens[len(self.tokens) - 4 * tail :]) + tokens
        end = table.end(np.frombuffer(turn, "<i4"), new)
        return None if end is None else end + before - tail


def first_parts(parts: list[tuple[str, int]], length: int) -> list[tuple[str, int]]:
    """Return the parts of the first `length` tokens."""
    kept: list[tuple[str, int]] = []
    for name, count in parts:
        if count := min(count, length):
            kept.append((name, count))
        length -= count
    return kept
