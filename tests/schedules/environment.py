"""The environment of a simulated run: what it says to each turn, and when, if it lives.

What it says follows from the tokens alone, so that every whole episode is known beforehand.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from rlboost_jax import messages as m
from tests.manager.fakes import MAX_TOKENS, VOCAB, response

# What it may do with a question, besides to answer it once and soon.
HABITS: Final = ("slow", "twice", "late", "wrong", "never", "restart")
NEVER_SECONDS: Final = 2.0  # after which one that is not answered begins anew


@dataclass(frozen=True)
class Rules:
    """What an episode may be.

    Attributes:
        turns: in all sequences.
        turn_tokens: of a turn; 0: no limit of its own.
        several: whether a sequence may be followed by another.
    """

    turns: int = 1
    turn_tokens: int = 0
    several: bool = False
    slot_tokens: int = 0


@dataclass(frozen=True)
class Whole:
    """A sequence: its tokens after the prompt, and their runs, sampled and given in turn."""

    prompt: tuple[int, ...]  # of the first of an episode not said: whatever was asked for
    tokens: tuple[int, ...]
    runs: tuple[int, ...]
    last: bool

    @property
    def wire_runs(self) -> tuple[int, ...]:
        """Runs as messages say them."""
        return self.runs if len(self.runs) > 1 else ()

    @property
    def split(self) -> list[list[int]]:
        ends = [0, *itertools.accumulate(self.runs)]
        return [list(self.tokens[a:b]) for a, b in itertools.pairwise(ends)]

    @property
    def sampled(self) -> list[int]:
        return [token for run in self.split[::2] for token in run]


@dataclass(frozen=True)
class Reply:
    """What is said to a turn."""

    given: tuple[int, ...]
    over: bool
    prompt: tuple[int, ...]  # of the sequence that follows; (): none does


def reply_to(tokens: Sequence[int], turn: int, *, several: bool) -> Reply:
    """Stop ids may be among what is given, and prompts too long for a slot.

    Args:
        tokens: of the sequence so far, after its prompt.
    """
    mixed = sum(tokens) * 31 + turn
    given = tuple((mixed + 7 * i) % VOCAB for i in range(mixed % 4))
    over = not given or mixed % 5 == 0
    prompt: tuple[int, ...] = ()
    if several and mixed % 7 < 4:
        over, prompt = True, tuple((mixed + 3 * i) % VOCAB for i in range(1 + mixed % 9))
    return Reply(given, over, prompt)


def in_turn(sample: int, turn: int, sequence: int = 0) -> int:
    """The sample whose tokens a later turn of this one is made of."""
    return sample + 1_000 * turn + 100_000 * sequence


@functools.cache
def episode(digest: str, step: int, sample: int, rules: Rules) -> tuple[Whole, ...]:
    """As the environment has it, of a prompt of 3 tokens."""
    whole: list[Whole] = []
    prompt: tuple[int, ...] = ()
    turns = 0
    while not whole or prompt:
        tokens: list[int] = []
        runs: list[int] = []
        left, place, prompt_tokens = MAX_TOKENS, 0, len(prompt) or 3
        following: tuple[int, ...] = ()
        while True:
            most = min(left, rules.turn_tokens or left)
            row = response(digest, step, in_turn(sample, place, len(whole)))[:most]
            tokens += row
            runs.append(len(row))
            left, turns = left - len(row), turns + 1
            if not left or turns == rules.turns:
                break
            reply = reply_to(tokens, place, several=rules.several)
            fits = prompt_tokens + len(tokens) + len(reply.given) + left <= rules.slot_tokens
            if fits:
                tokens += reply.given
                runs += [len(reply.given)] if reply.given else []
            if len(reply.prompt) + MAX_TOKENS <= rules.slot_tokens:
                following = reply.prompt
            if reply.over or not fits:
                break
            place += 1
        whole.append(Whole(prompt, tuple(tokens), tuple(runs), not following))
        prompt = following
    return tuple(whole)


class Environments:
    """Beside the trainer, one for each response, as its questions see it.

    They answer a while later, on the stream on which they were asked, or not at all. What is lost
    on the way is asked again, and answered again.

    Attributes:
        habits: that questions will meet, the next one first.
        seen: those that any has met.
    """

    def __init__(
        self,
        random: Random,
        later: Callable[[float, Callable[[], None]], None],
        say: Callable[[m.Answer], None],
        stream: Callable[[], int],
        *,
        several: bool,
    ) -> None:
        """
        Args:
            later: has something done, unless the trainer dies before.
            say: sends.
            stream: the present one; 0: none.
        """
        self._random, self._later, self._say, self._stream = random, later, say, stream
        self._several = several
        self.habits: list[str] = []
        self.seen: set[str] = set()
        self._life = 0
        # By question, its stream included.
        self._pending: dict[tuple[m.Work, int, int, int], m.Answer] = {}

    def take(self, parked: m.Parked) -> None:
        """A question."""
        tokens = m.unpack_tokens(parked.tokens).tolist()
        reply = reply_to(tokens, parked.turn, several=self._several)
        answer = m.Answer(
            work=parked.work,
            attempt=parked.attempt,
            turn=parked.turn,
            tokens=m.pack_tokens(reply.given),
            over=reply.over,
            prompt=m.pack_tokens(reply.prompt),
        )
        restart = msgspec.structs.replace(answer, tokens=b"", over=False, prompt=b"", restart=True)
        soon, stream = self._random.uniform(0.0, 0.4), self._stream()
        if not self.habits:
            self._answer(answer, stream, soon)
            return
        habit = self.habits.pop(0)
        self.seen.add(habit)
        match habit:
            case "slow":
                self._answer(answer, stream, self._random.uniform(1.0, 3.0))
            case "twice":
                self._answer(answer, stream, soon)
                self._answer(answer, stream, soon + self._random.uniform(0.0, 0.2))
            case "late":
                self._answer(answer, stream, soon)
                more = self._random.uniform(1.0, 3.0)
                self._later(more, lambda: self._say_on(stream, answer))
            case "wrong":
                self._wrong(answer, restart, stream, soon)
            case "never":
                self._answer(restart, stream, NEVER_SECONDS)
            case _:
                self._answer(restart, stream, soon)

    def die(self) -> bool:
        """All processes are gone, with what they were about to say: they are made again, and say
        the same. Whether any was asked anything."""
        self._life += 1
        for (*_, stream), answer in self._pending.items():
            self._answer(answer, stream, self._random.uniform(0.3, 1.0))
        return bool(self._pending)

    def _say_on(self, stream: int, answer: m.Answer) -> None:
        """As `rlboost_jax.learner.fleet.link.ManagerLink.answer` does."""
        if stream == self._stream():
            self._say(answer)

    def _answer(self, answer: m.Answer, stream: int, seconds: float) -> None:
        life, key = self._life, (answer.work, answer.attempt, answer.turn, stream)
        self._pending[key] = answer

        def say() -> None:
            if life == self._life:
                self._pending.pop(key, None)
                self._say_on(stream, answer)

        self._later(seconds, say)

    def _wrong(self, answer: m.Answer, restart: m.Answer, stream: int, seconds: float) -> None:
        """The right one, and behind it another to the same question."""
        others = [
            restart,
            msgspec.structs.replace(answer, tokens=m.pack_tokens([1, 2]), over=False, prompt=b""),
            msgspec.structs.replace(answer, tokens=b"", over=True, prompt=m.pack_tokens([9, 9])),
        ]
        other = others[self._random.randrange(len(others))]

        def say() -> None:
            self._say_on(stream, answer)
            more = self._random.uniform(0.0, 0.3)
            self._later(more, lambda: self._say_on(stream, other))

        self._later(seconds, say)


def doubt_of(result: m.FinishedRollout, found: Sequence[int], right: Sequence[int]) -> m.Doubt:
    """About the first token that is not what it should be."""
    pairs: Any = itertools.zip_longest(found, right)
    position = next(i for i, (one, other) in enumerate(pairs) if one != other)
    return m.Doubt(
        batch=result.work.batch,
        samples=m.pack_ids([result.work.sample]),
        attempts=m.pack_ids([result.attempt]),
        positions=m.pack_ids([position]),
        gap=9.0,
        sequences=m.pack_ids([result.work.sequence]),
        checksums=m.pack_ids([m.checksum(result.tokens, result.logprobs)]),
    )
