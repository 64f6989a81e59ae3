"""The sequences of one response: those that are over, and the one in the making.

Nearly always there is one. More there are only where an environment ends a sequence and goes on
with another prompt, as with a conversation that was rewritten. They are made one after the other,
so whatever is wrong in one makes all later ones void.

Positions are among all tokens after the prompts of all sequences: so a place in a response is one
number, here and in the journal.
"""

import itertools
from typing import NamedTuple

from rlboost_jax.manager.state.transcript import GIVEN, Transcript, first_parts
from rlboost_jax.messages import FinishedRollout, Sampling
from rlboost_jax.sequences.identities import Version, Work


class EndedSequence(NamedTuple):
    """One that others follow, as it is said to the trainer, and what it was made of."""

    result: FinishedRollout
    prompt_tokens: bytes
    parts: list[tuple[str, int]]
    num_tokens: int
    num_sampled: int
    num_turns: int


class Episode(Transcript):
    """A transcript of the newest sequence, behind those that are over.

    Attributes:
        ended: in order; nearly always none.
        tokens_before: in these.
    """

    __slots__ = ("ended", "tokens_before")

    def __init__(self, prompt_tokens: bytes, sampling: Sampling) -> None:
        """Nothing after the first prompt."""
        super().__init__(prompt_tokens, sampling)
        self.ended: tuple[EndedSequence, ...] = ()
        self.tokens_before = 0

    @property
    def begun(self) -> bool:
        """Whether anything of it is there."""
        return self.num_tokens > 0 or bool(self.ended)

    @property
    def first_prompt(self) -> bytes:
        return self.ended[0].prompt_tokens if self.ended else self.prompt_tokens

    @property
    def all_parts(self) -> list[tuple[str, int]]:
        """As `parts`, of all sequences."""
        if not self.ended:
            return self.parts
        return [*itertools.chain(*(one.parts for one in self.ended)), *self.parts]

    @property
    def all_tokens(self) -> int:
        """After the prompts."""
        return self.tokens_before + self.num_tokens

    @property
    def all_sampled(self) -> int:
        return self.num_sampled + sum([one.num_sampled for one in self.ended])

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Of each sequence: its tokens, prompt included, and how many of these were sampled."""
        ended = [(len(o.prompt_tokens) // 4 + o.num_tokens, o.num_sampled) for o in self.ended]
        return [*ended, (self.length, self.num_sampled)]

    @property
    def all_length(self) -> int:
        """Prompts and all that follows them so far, in tokens."""
        return sum([length for length, _ in self.sizes]) if self.ended else self.length

    @property
    def all_turns(self) -> int:
        """That have any tokens."""
        return self.num_turns + sum([one.num_turns for one in self.ended])

    def locate(self, sequence: int, position: int) -> int:
        """The place of a token of one sequence among those of all. Raises IndexError for one that
        is not there."""
        ended = self.ended[sequence].num_tokens if sequence < len(self.ended) else self.num_tokens
        if sequence > len(self.ended) or not 0 <= position < ended:
            raise IndexError(f"token {position} of {ended} in sequence {sequence}")
        return sum(one.num_tokens for one in self.ended[:sequence]) + position

    def sampler_of(self, place: int) -> str:
        """The instance that sampled the token at a place. Raises IndexError without one."""
        asked = place
        for name, count in self.all_parts:
            place -= count
            if place < 0:
                if name == GIVEN:
                    raise IndexError(f"token {asked} was given by the environment")
                return name
        raise IndexError(f"it has only {self.all_tokens} tokens")

    def first_of(self, name: str) -> int:
        """Place of the first token that instance `name` sampled; the number of all without one."""
        before = itertools.takewhile(lambda part: part[0] != name, self.all_parts)
        return sum(count for _, count in before)

    def sampled_from(self, length: int) -> int:
        """Sampled tokens behind the first `length` of all."""
        kept = first_parts(self.all_parts, length)
        return self.all_sampled - sum(count for name, count in kept if name != GIVEN)

    def _follow(self, work: Work, version: Version, attempt: int, prompt_tokens: bytes) -> None:
        """The newest sequence is over, and another begins."""
        parts, num_tokens, num_sampled = self.parts, self.num_tokens, self.num_sampled
        over = EndedSequence(
            result=self._closed(work, version, attempt, last=False),
            prompt_tokens=self.prompt_tokens,
            parts=parts,
            num_tokens=num_tokens,
            num_sampled=num_sampled,
            num_turns=self.num_turns,
        )
        self.ended += (over,)
        self.tokens_before += num_tokens
        self._begin(prompt_tokens)

    def _go_back(self, length: int) -> None:
        """Make the sequence the newest that the first token after `length` is in, or would be."""
        while self.ended and length < self.tokens_before:
            *before, one = self.ended
            self.ended, self.tokens_before = tuple(before), self.tokens_before - one.num_tokens
            self._begin(one.prompt_tokens)
            self._reopen(one.result)
            self.num_tokens = one.num_tokens
            self._made_of(one.parts)
