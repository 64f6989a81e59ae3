"""The sequences of one response: the completed ones, and the one being sampled.

Nearly always there is one. More there are only where an environment ends a sequence and goes on
with another prompt, as with a conversation that was rewritten. They are made one after the other,
so whatever is wrong in one makes all later ones void.

Positions are among all tokens after the prompts of all sequences: so a place in a response is one
number, here and in the journal.
"""

import itertools
from typing import Any, NamedTuple

import msgspec

from rlboost_jax.messages import (
    Answer,
    FinishedRollout,
    Parked,
    RoutedRollout,
    Sampling,
)
from rlboost_jax.sequences.identities import Version, Work
from rlboost_jax.sequences.transcript import GIVEN, Transcript, first_parts


class EndedSequence(NamedTuple):
    """A sequence that another follows.

    Attributes:
        attempt: of the response when it ended.
    """

    transcript: Transcript
    attempt: int


class EpisodeSequences:
    """A response's name, its limits, and the transcripts of its sequences.

    Attributes:
        work: of the newest sequence.
        attempt: how often tokens were discarded.
        ended: in order; nearly always none.
        newest: the one after these.
        tokens_before: in the ended ones, after their prompts.
    """

    __slots__ = ("attempt", "ended", "newest", "sampling", "tokens_before", "work")

    def __init__(self, work: Work, prompt: bytes, sampling: Sampling) -> None:
        """Start with the first prompt and no response."""
        self.work, self.sampling = work, sampling
        self.attempt = 0
        self.ended: tuple[EndedSequence, ...] = ()
        self.newest = Transcript(prompt)
        self.tokens_before = 0

    @property
    def transcripts(self) -> tuple[Transcript, ...]:
        """All of them, in order."""
        return (*[one.transcript for one in self.ended], self.newest)

    @property
    def first_prompt(self) -> bytes:
        return self.transcripts[0].prompt

    @property
    def begun(self) -> bool:
        """Whether any token follows the first prompt."""
        return self.newest.num_tokens > 0 or bool(self.ended)

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The `parts` of all sequences."""
        if not self.ended:
            return self.newest.parts
        return list(itertools.chain(*(one.parts for one in self.transcripts)))

    @property
    def num_tokens(self) -> int:
        """Number of tokens after the prompts of all sequences."""
        return self.tokens_before + self.newest.num_tokens

    @property
    def num_sampled(self) -> int:
        if not self.ended:
            return self.newest.num_sampled
        return sum([one.num_sampled for one in self.transcripts])

    @property
    def length(self) -> int:
        """Number of tokens in all sequences, prompts included."""
        return sum([one.length for one in self.transcripts]) if self.ended else self.newest.length

    @property
    def num_turns(self) -> int:
        """Number of turns, over all sequences, that have any tokens."""
        return sum([one.num_turns for one in self.transcripts])

    def last_turn(self, most: int) -> bool:
        """Return whether no other turn can follow the newest one; `most` are possible."""
        if self.newest.turn + 1 >= most or (self.ended and self.num_turns >= most):
            return True
        return self.newest.num_sampled >= self.sampling.max_tokens

    def locate(self, sequence: int, position: int) -> int:
        """Return the place of a sequence's token among those of all sequences.

        Raises IndexError if it does not exist.
        """
        there = self.transcripts[sequence].num_tokens if sequence <= len(self.ended) else 0
        if not 0 <= position < there:
            raise IndexError(f"token {position} of {there} in sequence {sequence}")
        return sum([one.num_tokens for one in self.transcripts[:sequence]]) + position

    def sampler_of(self, place: int) -> str:
        """Return who sampled the token at a place. Raises IndexError if nobody did."""
        asked = place
        for name, count in self.parts:
            place -= count
            if place < 0:
                if name == GIVEN:
                    raise IndexError(f"token {asked} was given by the environment")
                return name
        raise IndexError(f"it has only {self.num_tokens} tokens")

    def first_of(self, name: str) -> int:
        """Place of the first token that `name` sampled; the number of all without one."""
        before = itertools.takewhile(lambda part: part[0] != name, self.parts)
        return sum(count for _, count in before)

    def sampled_from(self, length: int) -> int:
        """Count the sampled tokens behind the first `length` of all."""
        kept = first_parts(self.parts, length)
        return self.num_sampled - sum(count for name, count in kept if name != GIVEN)

    def append(self, tokens: bytes, logprobs: bytes, sampler: str, routes: bytes = b"") -> None:
        """Append sampled tokens to the newest sequence."""
        self.newest.append(tokens, logprobs, sampler, routes)

    def follow(self, prompt: bytes) -> None:
        """Complete the newest sequence and begin another."""
        self.ended += (EndedSequence(self.newest, self.attempt),)
        self.tokens_before += self.newest.num_tokens
        self.newest = Transcript(prompt)
        self._rename()

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens. The sequence with the next one is the newest again."""
        self.attempt += 1
        while self.ended and length < self.tokens_before:
            *before, one = self.ended
            self.ended, self.newest = tuple(before), one.transcript
            self.tokens_before -= self.newest.num_tokens
        self.newest.cut(length - self.tokens_before)
        self._rename()

    def _rename(self) -> None:
        self.work = msgspec.structs.replace(self.work, sequence=len(self.ended))

    def question(self) -> Parked:
        """Make the message that asks the trainer for an answer to the newest turn."""
        return Parked(
            work=self.work,
            attempt=self.attempt,
            turn=self.newest.turn,
            tokens=bytes(self.newest.tokens),
            runs=self.newest.runs,
            logprobs=bytes(self.newest.logprobs),
        )

    def completed(self, number: int, version: Version) -> FinishedRollout:
        """Make the trainer's message about a sequence of which no more is sampled."""
        last = number == len(self.ended)
        one = self.newest if last else self.ended[number].transcript
        fields: dict[str, Any] = {
            "work": msgspec.structs.replace(self.work, sequence=number),
            "tokens": bytes(one.tokens),
            "logprobs": bytes(one.logprobs),
            "versions": ((version, one.num_sampled),),
            "instances": one.samplers,
            "attempt": self.attempt if last else self.ended[number].attempt,
            "runs": one.runs,
            "last": last,
            "prompt": one.prompt if number else b"",
        }
        routes = bytes(one.routes)
        return RoutedRollout(**fields, routes=routes) if routes else FinishedRollout(**fields)

    def within(self, answer: Answer, slot_tokens: int) -> tuple[bytes, bool, bytes]:
        """Return the part of an answer that fits the slot with what may still be sampled.

        That is: the tokens given, whether the sequence is over, and the prompt of the next one.
        What does not fit ends a sequence as if its length had.
        """
        tokens, over, prompt = answer.tokens, answer.over, answer.prompt
        left = self.sampling.max_tokens - self.newest.num_sampled
        if self.newest.length + len(tokens) // 4 + left > slot_tokens:
            tokens, over = b"", True
        if len(prompt) // 4 + self.sampling.max_tokens > slot_tokens:
            prompt = b""
        return tokens, over, prompt
