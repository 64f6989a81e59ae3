"""One episode, decided without I/O: questions come in, and what to do about them goes out.

A question is a turn that is over (`Parked`) or a response that is finished. It is answered from
what was kept; else by the environment, which is made again where it is not there, and all turns
before are replayed to it. What it answers is kept before it is sent on.

    episode.ask(question) → actions
    Open         → episode.opened(), episode.lost(…)
    Take         → episode.taken(record), episode.lost(…)
    Keep         → episode.kept()
    WaitSeconds  → episode.waited()
    Say, JudgeEpisode, Drop, StopRun: nothing is heard of them

At most one of the first four is in progress. Whatever comes twice, late, or of an attempt that was
abandoned changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rlboost_jax.environments.actions import (
    Action,
    Actions,
    Drop,
    EpisodeQuestion,
    JudgeEpisode,
    Keep,
    Open,
    Say,
    StopRun,
    Take,
    WaitSeconds,
)
from rlboost_jax.environments.episode_records import (
    EpisodeLeftOut,
    EpisodeRecord,
    EpisodeRestarted,
    Past,
    TurnAnswered,
    named,
)
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.settings.environment_config import EnvironmentConfig

MOST_OUTSIDE: Final = 100  # losses in a row for which nobody in the episode can do anything
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 10.0
CONTEXT_FULL: Final = "context_full"  # metrics of an episode that a limit has ended
OUT_OF_TIME: Final = "out_of_time"


@dataclass(frozen=True)
class _Begun:
    """A sequence: the turn it follows, and its first tokens."""

    before: tuple[Past, ...]  # turns of sequences before it
    name: bytes
    prompt: bytes


class Episode:
    """State machine of one episode.

    Args:
        sample: its number in its batch.
        name: see `identity`.
        prompt: int32, of its first sequence.
        room: tokens that a later sequence's prompt may have.
        records: that were kept of it before, in their order.
    """

    def __init__(
        self,
        settings: EnvironmentConfig,
        *,
        sample: int,
        name: bytes,
        prompt: bytes,
        room: int,
        records: Iterable[Any] = (),
    ) -> None:
        self._settings, self._sample, self._room = settings, sample, room
        self._answered: dict[bytes, TurnAnswered] = {}
        self._first = _Begun((), name, prompt)
        self._begun: dict[int, _Begun] = {0: self._first}
        self._restarted = -1  # attempts up to this one are abandoned
        self._left_out = ""
        self._question: EpisodeQuestion | None = None
        self._history: tuple[Past, ...] = ()  # of the question
        self._live: list[bytes] | None = None  # names of the turns that the environment has had
        self._doing: Action | None = None
        self._failures = self._losses = 0  # in a row
        self._alone = False
        for record in records:
            self._learn(record)

    @property
    def room(self) -> int:
        """Most tokens of anything that is given."""
        return max(self._room, self._settings.max_given_tokens)

    def before(self, index: int) -> tuple[TurnAnswered, ...]:
        """Answers to the turns before one."""
        return tuple(self._answered[past.name] for past in self._history[:index])

    def ask(self, question: EpisodeQuestion) -> Actions:
        """Take a question, which replaces the one before.

        Turns are asked about in their order, and by a manager that has lost its newest attempts
        with older ones again. What is finished is asked about by the trainer, whom a newer attempt
        may have overtaken.
        """
        if question.attempt <= self._restarted and not question.finished:
            return (Say(question, restart=True),)
        newest = self._question
        if question.finished and newest is not None and question.attempt < newest.attempt:
            return ()
        self._question = question
        return self._next()

    def opened(self) -> Actions:
        """Note that the environment is there, and has given the same prompt."""
        assert isinstance(self._doing, Open)
        self._doing, self._live = None, []
        return self._next()

    def taken(self, answered: TurnAnswered) -> Actions:
        """Take the environment's answer to the turn it was given, in the turn's record."""
        doing = self._doing
        assert isinstance(doing, Take) and self._live is not None
        self._doing = None
        self._live.append(doing.past.name)
        said = self._ruled(answered, doing)
        if isinstance(said, str):
            return self.lost(said, own=True)
        known = self._answered.get(doing.past.name)
        given = doing.past.given
        same = known is None or known.said == said.said
        if not same or (given is not None and given != said.given):
            return self._diverged(doing)
        self._losses = 0
        if known is not None:
            return self._next()
        self._failures = 0
        return self._keep(said)

    def kept(self) -> Actions:
        """Note that what was to be kept is durable."""
        assert isinstance(self._doing, Keep)
        record, self._doing = self._doing.record, None
        self._learn(record)
        if isinstance(record, EpisodeRestarted):
            question, self._question = self._question, None
            assert question is not None
            return Drop(), Say(question, restart=True)
        return self._next()

    def waited(self) -> Actions:
        assert isinstance(self._doing, WaitSeconds)
        self._doing = None
        return self._next()

    def lost(
        self, why: str, *, own: bool, outside: bool = False, for_good: bool = False
    ) -> Actions:
        """Handle a failure of the environment, or the end of its process.

        Args:
            own: it is the environment's own fault; else that of another in its process, perhaps.
            outside: somebody has ended the process, for which nobody in it can do anything.
            for_good: to try again is of no use.
        """
        self._doing, self._live = None, None
        if outside:
            self._losses += 1
            over = self._losses >= MOST_OUTSIDE
        elif own or self._alone:
            self._failures += 1
            over = for_good or self._failures >= self._settings.attempts
        else:
            self._alone, over = True, False
        if over:
            return (Drop(), *self._abandoned(why))
        self._doing = WaitSeconds(
            backoff_seconds(
                max(self._failures + self._losses - 1, 0),
                first=FIRST_PAUSE_SECONDS,
                longest=LONGEST_PAUSE_SECONDS,
            )
        )
        return Drop(), self._doing

    def _next(self) -> Actions:
        """Decide the next actions."""
        question = self._question
        if self._doing is not None or question is None:
            return ()
        if self._left_out:
            return self._over(question, None)
        begun = self._begun.get(question.work.sequence)
        if begun is None:  # its prompt was ours, and what was kept of it is lost
            return self._abandoned(f"nothing is known of its sequence {question.work.sequence}")
        own = named(begun.name, begun.prompt, question.transcript.turns())
        self._history = history = (*begun.before, *own)
        missing = next((i for i, past in enumerate(history) if past.name not in self._answered), -1)
        if missing < 0:
            return self._over(question, self._answered[history[-1].name])
        live = self._live
        if live is not None and live != [past.name for past in history[: len(live)]]:
            live = self._live = None  # of turns that were discarded since
        if live is not None and len(live) > missing:
            live = self._live = None
        if live is None:
            self._doing = Open(self._alone)
            return Drop(), self._doing
        self._doing = Take(len(live), history[len(live)], self._unanswered(len(live)))
        return (self._doing,)

    def _over(self, question: EpisodeQuestion, answered: TurnAnswered | None) -> Actions:
        """Finish a question: every turn of it is answered, or none will be."""
        self._question = None
        if question.finished:
            turns = [self._answered.get(past.name) for past in self._history]
            known = tuple(turn for turn in turns if turn is not None)
            self._live = None
            return Drop(), JudgeEpisode(known, self._left_out)
        if answered is not None and answered.prompt:
            self._begun_by(answered)
        if answered is None or (answered.over and not answered.prompt):
            self._live = None
            return Say(question, answered), Drop()
        return (Say(question, answered),)

    def _unanswered(self, index: int) -> TurnAnswered:
        """Record of a turn of the history, before the environment has answered it."""
        past = self._history[index]
        return TurnAnswered(
            sample=self._sample,
            sequence=self._sequence_of(index),
            name=past.name,
            before=self._history[index - 1].name if index else self._first.name,
            sampled=past.sampled,
            given=b"",
            prompt=b"",
            over=False,
            reward=0.0,
            metrics={},
            messages=b"",
            seconds=0.0,
        )

    def _ruled(self, answered: TurnAnswered, doing: Take) -> TurnAnswered | str:
        """Apply the limits of an episode to an answer; returns it, or why it is invalid."""
        settings, before = self._settings, self.before(doing.index)
        given, prompt, over = answered.given, answered.prompt, answered.over
        metrics = answered.metrics
        known = self._answered.get(answered.name)
        seconds = known.seconds if known else answered.seconds  # it counts as it did the first time
        if not (given or prompt or over):
            return "it said nothing, and not that the episode is done"
        taken = sum(len(each.given) for each in before if each.sequence == answered.sequence) // 4
        full = taken + len(given) // 4 > settings.max_given_tokens or len(prompt) // 4 > self._room
        late = 0 < settings.episode_seconds < sum(t.seconds for t in before) + seconds
        if not over and (full or late):
            metrics = {**metrics, CONTEXT_FULL if full else OUT_OF_TIME: 1.0}
            over = True
        if over:
            given = prompt = b""
        return msgspec.structs.replace(
            answered,
            given=given,
            prompt=prompt,
            over=over or bool(prompt),
            metrics=metrics,
            seconds=seconds,
        )

    def _sequence_of(self, index: int) -> int:
        """Number of the sequence that a turn of the history belongs to."""
        before = (self._answered.get(past.name) for past in self._history[:index])
        return sum(bool(each.prompt) for each in before if each is not None)

    def _diverged(self, doing: Take) -> Actions:
        """Handle an environment that, made again, answers a turn differently than before."""
        why = (
            f"made again, the environment answers turn {doing.index} otherwise than before; what "
            "is random in it must come from the seed"
        )
        if self._settings.on_divergence == "stop":
            return (StopRun(why),)
        question = self._question
        self._failures += 1
        finished = question is None or question.finished
        if finished or self._failures >= self._settings.attempts:
            self._live = None
            return (Drop(), *self._abandoned(why))
        assert question is not None
        return self._keep(EpisodeRestarted(sample=self._sample, attempt=question.attempt))

    def _abandoned(self, why: str) -> Actions:
        if self._settings.on_failure == "stop":
            return (StopRun(why),)
        return self._keep(EpisodeLeftOut(sample=self._sample, why=why))

    def _keep(self, record: EpisodeRecord) -> Actions:
        self._doing = Keep(record)
        return (self._doing,)

    def _learn(self, record: Any) -> None:
        match record:
            case TurnAnswered():
                self._answered[record.name] = record
                if record.prompt:
                    self._begun_by(record)
            case EpisodeRestarted():
                self._answered.clear()
                self._begun = {0: self._first}
                self._restarted = max(self._restarted, record.attempt)
                self._live = None
            case EpisodeLeftOut():
                self._left_out = record.why
            case _:
                raise AssertionError(f"{type(record).__name__} is of no episode")

    def _begun_by(self, record: TurnAnswered) -> None:
        """Record the sequence that begins after a turn, if all earlier turns are known."""
        chain: list[Past] = []
        link: TurnAnswered | None = record
        while link is not None:
            chain.insert(0, Past(name=link.name, sampled=link.sampled, given=link.given))
            if link.before == self._first.name:
                begun = _Begun(tuple(chain), record.name, record.prompt)
                self._begun[record.sequence + 1] = begun
            link = self._answered.get(link.before)
