"""The tokens of a sequence in the making: sampled by instances, and given in between.

Positions are among all tokens after the prompt, the policy's and the environment's. A *turn* is
what the policy samples until a stop id or a limit; what somebody gives after that begins the next.
"""

import itertools
from typing import Any

from rlboost_jax.messages import (
    Answer,
    FinishedRollout,
    RoutedRollout,
    Sampling,
    unpack_tokens,
)
from rlboost_jax.sequences.endings import finish_reason, most_of_turn
from rlboost_jax.sequences.identities import Version, Work
from rlboost_jax.sequences.sequence import Runs
from rlboost_jax.sequences.stop_table import stop_table

GIVEN = ""  # in the place of an instance's name: nobody sampled these


class Transcript:
    """Tokens, and all that is known of them.

    Attributes:
        logprobs: of the sampled tokens only.
        routes: of all positions before the newest sampled token's, where a run replays them.
        parts: (instance that sampled them or `GIVEN`, number of tokens), in order.
        turn: number of the one that is under way, or has ended and is not answered.
    """

    __slots__ = ("_sampled_before", "logprobs", "num_sampled", "num_tokens", "parts",
                 "prompt_tokens", "routes", "sampling", "tokens", "turn")  # fmt: skip

    def __init__(self, prompt_tokens: bytes, sampling: Sampling) -> None:
        """Nothing after a prompt."""
        self.sampling = sampling
        self._begin(prompt_tokens)

    @property
    def num_given(self) -> int:
        return self.num_tokens - self.num_sampled

    @property
    def length(self) -> int:
        """Prompt and all that follows it so far, in tokens."""
        return len(self.prompt_tokens) // 4 + self.num_tokens

    @property
    def newest_given(self) -> int:
        """Tokens that were given since the last one was sampled; 0 before any was."""
        return self.parts[-1][1] if self.parts and self.parts[-1][0] == GIVEN else 0

    @property
    def lead(self) -> int:
        """Routes that come with the next tokens besides one for each: those of the prompt, or of
        what was given since the last sampled token."""
        return self.newest_given if self.num_tokens else self.length - 1

    @property
    def runs(self) -> Runs:
        """Numbers of tokens in turn sampled and given, as messages say them: () without any that
        were given."""
        if not self.turn:
            return ()
        origins = itertools.groupby(self.parts, lambda part: part[0] == GIVEN)
        return tuple(sum(count for _, count in parts) for _, parts in origins)

    @property
    def num_turns(self) -> int:
        """That have any tokens."""
        return self.turn + (self.num_tokens > 0 and not self.newest_given)

    @property
    def instances(self) -> tuple[str, ...]:
        """That sampled any of it, in order."""
        return tuple(dict.fromkeys([name for name, _ in self.parts if name != GIVEN]))

    @property
    def turn_over(self) -> bool:
        """Whether its last token ends its turn."""
        if self.turn and self.newest_given:
            return False
        sampled = self.num_sampled - self._sampled_before
        reason = finish_reason(
            int.from_bytes(self.tokens[-4:], "little", signed=True),
            sampled,
            max_tokens=sampled + self.room,
            stop_ids=self.sampling.stop_ids,
        )
        if reason is None and self.sampling.stops and sampled:
            return self._turn_end(b"", 1) is not None
        return reason is not None

    def own(self, tokens: bytes) -> int:
        """How many of some new tokens belong to its turn: what follows a stop string does not."""
        count = len(tokens) // 4
        if not self.sampling.stops:
            return count
        end = self._turn_end(tokens, count)
        return count if end is None else end - (self.num_sampled - self._sampled_before)

    def _turn_end(self, tokens: bytes, new: int) -> int | None:
        """See `StopTable.end`, of the turn with more tokens."""
        table, before = stop_table(self.sampling.stops), self.num_sampled - self._sampled_before
        tail = min(before, table.reach)  # what lies before it says nothing of a string
        turn = bytes(self.tokens[len(self.tokens) - 4 * tail :]) + tokens
        end = table.end(unpack_tokens(turn), new)
        return None if end is None else end + before - tail

    @property
    def room(self) -> int:
        """Tokens that may still be sampled in this turn."""
        before, sampling = self._sampled_before, self.sampling
        if not sampling.turn_tokens:  # asked for at every row of every message: no call
            return sampling.max_tokens - self.num_sampled
        most = most_of_turn(
            before, max_tokens=sampling.max_tokens, turn_tokens=sampling.turn_tokens
        )
        return most - (self.num_sampled - before)

    def within(self, answer: Answer, slot_tokens: int) -> tuple[bytes, bool, bytes]:
        """What of an answer a slot has room for, with all that may be sampled yet: the tokens that
        are given, whether the sequence is over, and the prompt of the next one.

        What does not fit ends a sequence as if its length had.
        """
        tokens, over, prompt = answer.tokens, answer.over, answer.prompt
        left = self.sampling.max_tokens - self.num_sampled
        if self.length + len(tokens) // 4 + left > slot_tokens:
            tokens, over = b"", True
        if len(prompt) // 4 + self.sampling.max_tokens > slot_tokens:
            prompt = b""
        return tokens, over, prompt

    def _begin(self, prompt_tokens: bytes) -> None:
        """Nothing is there but a prompt."""
        self.prompt_tokens = prompt_tokens
        self._forget()
        self.num_tokens = 0
        self.num_sampled = 0  # of these
        self._sampled_before = 0  # in the turns before this one
        self.parts: list[tuple[str, int]] = []
        self.turn = 0

    def _append(self, tokens: bytes, logprobs: bytes, name: str, routes: bytes) -> None:
        """What instance `name` sampled."""
        count = len(tokens) // 4
        self.tokens += tokens
        self.logprobs += logprobs
        self.routes += routes
        self.num_tokens += count
        self.num_sampled += count
        if self.parts and self.parts[-1][0] == name:
            self.parts[-1] = name, self.parts[-1][1] + count
        else:
            self.parts.append((name, count))

    def _append_given(self, tokens: bytes) -> None:
        """What somebody says after a turn: the next one begins."""
        count = len(tokens) // 4
        self.tokens += tokens
        self.num_tokens += count
        self.parts.append((GIVEN, count))
        self._sampled_before = self.num_sampled
        self.turn += 1

    def _truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Routes go on to before the last sampled of them."""
        routed = self.length - self.newest_given - 1
        parts = first_parts(self.parts, length)
        if length == 0:
            self._forget()
        elif length < self.num_tokens:
            route_bytes = len(self.routes) // routed
            given = [count for name, count in parts if name == GIVEN]
            newest_given = parts[-1][1] if parts[-1][0] == GIVEN else 0
            del self.tokens[4 * length :], self.logprobs[4 * (length - sum(given)) :]
            kept = len(self.prompt_tokens) // 4 + length - newest_given - 1
            del self.routes[route_bytes * kept :]
        self.num_tokens = length
        self._made_of(parts)

    def _made_of(self, parts: list[tuple[str, int]]) -> None:
        """Count turns, and what was sampled in them."""
        self.parts = parts
        self.num_sampled = sum(count for name, count in parts if name != GIVEN)
        self.turn = sum(name == GIVEN for name, _ in parts)
        newest = itertools.takewhile(lambda part: part[0] != GIVEN, reversed(parts))
        self._sampled_before = self.num_sampled - sum(count for _, count in newest)

    def _closed(
        self, work: Work, version: Version, attempt: int, *, last: bool = True
    ) -> FinishedRollout:
        """All of it as the trainer gets it, where the tokens are from now on."""
        fields: dict[str, Any] = {
            "work": work,
            "tokens": bytes(self.tokens),
            "logprobs": bytes(self.logprobs),
            "versions": ((version, self.num_sampled),),
            "instances": self.instances,
            "attempt": attempt,
            "runs": self.runs,
            "last": last,
            "prompt": self.prompt_tokens if work.sequence else b"",
        }
        routes = bytes(self.routes)
        self._forget()
        return RoutedRollout(**fields, routes=routes) if routes else FinishedRollout(**fields)

    def _reopen(self, result: FinishedRollout) -> None:
        """Take back what `_closed` gave away."""
        self.tokens, self.logprobs = bytearray(result.tokens), bytearray(result.logprobs)
        if isinstance(result, RoutedRollout):
            self.routes = bytearray(result.routes)

    def _forget(self) -> None:
        self.tokens = bytearray()  # int32
        self.logprobs = bytearray()  # float32
        self.routes = bytearray()


def first_parts(parts: list[tuple[str, int]], length: int) -> list[tuple[str, int]]:
    """What the first `length` tokens are made of."""
    kept: list[tuple[str, int]] = []
    for name, count in parts:
        if count := min(count, length):
            kept.append((name, count))
        length -= count
    return kept
