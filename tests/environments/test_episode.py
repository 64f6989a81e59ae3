"""One episode under random schedules: it answers as the calm one does.

The environment is a few lines whose answer to a turn follows from all turns it has had. Its process
is lost, the trainer comes back with what was kept, questions come twice and late.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.environments.actions import (
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
from rlboost_jax.environments.episode import CONTEXT_FULL, OUT_OF_TIME, Episode
from rlboost_jax.environments.episode_records import EpisodeLeftOut, TurnAnswered
from rlboost_jax.sequences.identities import Batch, Work
from rlboost_jax.sequences.transcript import Transcript
from rlboost_jax.settings.environment_config import EnvironmentConfig

SETTINGS = EnvironmentConfig(name="x:y", max_given_tokens=100, attempts=3)
NAME, PROMPT = b"n" * 16, np.array([1, 2], "<i4").tobytes()


def ids(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@dataclass(frozen=True)
class World:
    """What an environment says, by all turns that it has had.

    Attributes:
        new: after so many turns in a sequence, another begins; 0: never.
        salt: of what it says; one that changes is no function of its turns.
    """

    turns: int
    new: int = 0
    salt: int = 0

    def answer(self, record: TurnAnswered, had: Sequence[bytes]) -> TurnAnswered:
        number = int.from_bytes(hashlib.sha256(b"|".join(had)).digest()[:2], "little")
        number = number % 1000 + self.salt
        done = len(had) >= self.turns
        begins = not done and self.new and len(had) % self.new == 0
        said = ids(number, number + 1)
        return msgspec.structs.replace(
            record,
            given=b"" if done or begins else said,
            prompt=said if begins else b"",
            reward=number / 1000,
            over=done,
            metrics={"solved": 1.0} if done else {},
            seconds=1.0,
            calls=(("tool", False),),
        )


def asked_about(
    turns: Sequence[tuple[bytes, bytes | None]],
    *,
    sequence: int = 0,
    attempt: int = 0,
    finished: bool = False,
) -> EpisodeQuestion:
    """A question about turns: of each what was sampled, and what it was answered."""
    transcript = Transcript(b"")
    for turn, answer in turns:
        transcript.append(turn)
        if answer is not None:
            transcript.give(answer)
    work = Work(seed=0, batch=Batch(0), prompt=2, sample=5, sequence=sequence)
    return EpisodeQuestion(work=work, attempt=attempt, transcript=transcript, finished=finished)


def made(kept: Sequence[Any] = (), config: EnvironmentConfig = SETTINGS) -> Episode:
    return Episode(config, sample=5, name=NAME, prompt=PROMPT, room=50, records=kept)


class Stage:
    """Does what an episode decides: plays trainer, disk and worker."""

    def __init__(self, world: World, config: EnvironmentConfig = SETTINGS) -> None:
        self.world, self.config = world, config
        self.kept: list[Any] = []
        self.episode = made(config=config)
        self.had: list[bytes] | None = None  # by the environment that is there
        self.under_way: Any = None
        self.said: list[Say] = []
        self.judged: list[JudgeEpisode] = []
        self.stopped: list[str] = []
        self.taken = 0

    def act(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Say():
                    self.said.append(action)
                case JudgeEpisode():
                    self.judged.append(action)
                case Drop():
                    self.had = None
                case StopRun(why):
                    self.stopped.append(why)
                case _:
                    assert self.under_way is None, "one thing at a time"
                    self.under_way = action

    def ask(self, question: EpisodeQuestion) -> None:
        self.act(self.episode.ask(question))

    def go_on(self) -> None:
        """What is under way goes well."""
        action, self.under_way = self.under_way, None
        match action:
            case Open():
                self.had = []
                self.act(self.episode.opened())
            case Take() if self.had is None:  # it was lost while nothing was asked of it
                self.act(self.episode.lost("gone", own=False, outside=True))
            case Take(index, past, record):
                assert self.had is not None and len(self.had) == index
                self.had.append(past.sampled)
                self.taken += 1
                self.act(self.episode.taken(self.world.answer(record, self.had)))
            case Keep(record):
                self.kept.append(record)
                self.act(self.episode.kept())
            case WaitSeconds():
                self.act(self.episode.waited())

    def lose(self, **how: bool) -> None:
        """Its process is gone."""
        self.had = None
        if isinstance(self.under_way, Open | Take):
            self.under_way = None
            self.act(self.episode.lost("gone", **{"own": False, "outside": True, **how}))

    def start_again(self, *, torn: bool) -> None:
        """The trainer was killed; what was being kept is there or not."""
        if isinstance(self.under_way, Keep) and not torn:
            self.kept.append(self.under_way.record)
        self.had = self.under_way = None
        self.episode = made(self.kept, self.config)

    def answered(self, question: EpisodeQuestion) -> Say | None:
        found = [say for say in self.said if say.question == question]
        return found[-1] if found else None

    def until(self, settled: Any, most: int = 1000) -> None:
        for _ in range(most):
            if settled():
                return
            self.go_on()
        raise AssertionError("it is stuck")


def sampled(sequence: int, turn: int, attempt: int = 0) -> bytes:
    return ids(10 + sequence, 20 + turn, 30 + attempt)


def policy(stage: Stage, between: Any = lambda: None) -> tuple[list[Any], JudgeEpisode]:
    """Sample turn after turn, as the answers say, and have the episode judged.

    Args:
        between: called before each look whether there is an answer.

    Returns:
        All that was answered, and the verdict.
    """
    answers: list[Any] = []
    sequence, attempt = 0, 0
    turns: list[tuple[bytes, bytes | None]] = []
    while True:
        turns.append((sampled(sequence, len(turns), 0), None))
        question = asked_about(turns, sequence=sequence, attempt=attempt)
        stage.ask(question)
        for _ in range(2000):
            between()
            say = stage.answered(question)
            if say is not None:
                break
            if stage.under_way is None:
                stage.ask(question)  # by a manager that asks again
            stage.go_on()
        else:
            raise AssertionError("no answer")
        if say.restart:
            answers, turns, sequence = [], [], 0
            attempt += 1
            continue
        answered = say.answered
        answers.append(None if answered is None else answered.said)
        if answered is not None and answered.prompt:
            turns, sequence = [], sequence + 1
            continue
        if answered is None or answered.over:
            break
        turns[-1] = (turns[-1][0], answered.given)
    finished = replace(question, finished=True)
    count = len(stage.judged)
    stage.ask(finished)
    for _ in range(2000):
        if len(stage.judged) > count:
            return answers, stage.judged[-1]
        between()
        if stage.under_way is None and len(stage.judged) == count:
            stage.ask(finished)
        stage.go_on()
    raise AssertionError("no verdict")


worlds = st.builds(World, turns=st.integers(1, 5), new=st.sampled_from([0, 0, 1, 2]))


@given(worlds, st.lists(st.sampled_from(["", "", "lose", "kill", "torn", "twice"]), max_size=60))
@settings(max_examples=400)
def test_whatever_dies_the_answers_are_those_of_the_calm_episode(
    world: World, events: list[str]
) -> None:
    calm = Stage(world)
    expected = policy(calm)
    assert calm.taken == world.turns, "each turn is taken once"
    stage, left = Stage(world), iter(events)

    def between() -> None:
        match next(left, ""):
            case "lose":
                stage.lose()
            case "kill":
                stage.start_again(torn=False)
            case "torn":
                stage.start_again(torn=True)
            case "twice":
                for say in list(stage.said):
                    stage.ask(say.question)

    answers, judged = policy(stage, between)
    assert (answers, judged) == expected
    names = [record.name for record in stage.kept if isinstance(record, TurnAnswered)]
    assert len(names) == len(set(names)) == world.turns, "and kept once"
    assert not judged.left_out and sum(turn.reward for turn in judged.turns) > 0


def question(*given: bytes | None, attempt: int = 0, finished: bool = False) -> EpisodeQuestion:
    turns = [(sampled(0, place), each) for place, each in enumerate(given)]
    return asked_about(turns, attempt=attempt, finished=finished)


def test_the_last_turn_of_a_finished_episode_is_taken_too() -> None:
    """One that was never asked about: the turns, or the tokens, were used up."""
    stage = Stage(World(turns=9))
    stage.ask(question(None))
    stage.until(lambda: stage.said)
    given = stage.said[0].answered.given  # type: ignore[union-attr]
    stage.ask(question(given, None, finished=True))
    stage.until(lambda: stage.judged)
    assert len(stage.judged[0].turns) == 2 and stage.taken == 2
    assert stage.had is None, "it is of no more use"


def test_a_failure_of_its_own_is_tried_again_so_often() -> None:
    stage = Stage(World(turns=3))
    stage.ask(question(None))
    tries = 0
    while not stage.said:
        if isinstance(stage.under_way, Take):
            tries += 1
            stage.lose(own=True, outside=False)
        else:
            stage.go_on()
    assert tries == SETTINGS.attempts
    assert stage.said == [Say(question(None))], "the sequence is over, with nothing given"
    assert stage.kept == [EpisodeLeftOut(sample=5, why="gone")]
    stage.ask(question(None, finished=True))
    assert stage.judged == [JudgeEpisode((), "gone")]
    again = made(stage.kept)  # of a trainer that comes back
    assert again.ask(question(None, finished=True))[-1] == JudgeEpisode((), "gone")


def test_what_cannot_be_tried_again_is_not() -> None:
    stage = Stage(World(turns=3))
    stage.ask(question(None))
    stage.go_on()
    stage.lose(own=True, outside=False, for_good=True)
    assert isinstance(stage.under_way, Keep)


def test_a_run_may_be_stopped_by_it_instead() -> None:
    config = replace(SETTINGS, on_failure="stop", attempts=1)
    stage = Stage(World(turns=3), config)
    stage.ask(question(None))
    stage.lose(own=True, outside=False)
    assert stage.stopped == ["gone"] and not stage.kept


def test_whose_process_ended_for_another_is_tried_alone_and_not_blamed() -> None:
    stage = Stage(World(turns=1))
    stage.ask(question(None))
    assert stage.under_way == Open(alone=False)
    stage.lose(outside=False)
    stage.go_on()
    assert stage.under_way == Open(alone=True)
    stage.until(lambda: stage.said)
    assert stage.said[0].answered is not None


@pytest.mark.parametrize("failures", [1, 2])
def test_progress_takes_failures_back(failures: int) -> None:
    """Each turn has its own attempts; turns that are only repeated are no progress."""
    stage, answers = Stage(World(turns=3)), list[bytes | None]()
    for _ in range(3):
        asked = question(*answers, None)
        stage.ask(asked)
        left = failures
        while stage.answered(asked) is None:
            if isinstance(stage.under_way, Take) and stage.under_way.index == len(answers) and left:
                left -= 1
                stage.lose(own=True, outside=False)
            else:
                stage.go_on()
        say = stage.answered(asked)
        assert say is not None and say.answered is not None
        answers.append(say.answered.given)
    assert not any(isinstance(record, EpisodeLeftOut) for record in stage.kept)


def diverging(config: EnvironmentConfig) -> tuple[Stage, EpisodeQuestion]:
    """One that has answered a turn, is lost, and says something else when it is made again."""
    stage = Stage(World(turns=3), config)
    stage.ask(question(None))
    stage.until(lambda: stage.said)
    given = stage.said[0].answered.given  # type: ignore[union-attr]
    stage.lose()
    stage.episode = made(stage.kept, config)
    stage.world = World(turns=3, salt=1)
    asked = question(given, None)
    stage.ask(asked)
    return stage, asked


def test_one_that_answers_otherwise_begins_again() -> None:
    stage, asked = diverging(SETTINGS)
    stage.until(lambda: stage.answered(asked))
    assert stage.answered(asked) == Say(asked, restart=True)
    assert stage.episode.ask(asked) == (Say(asked, restart=True),), "said again where it was lost"
    assert made(stage.kept).ask(asked) == (Say(asked, restart=True),), "by its successor"
    anew = question(None, attempt=1)
    stage.ask(anew)
    stage.until(lambda: stage.answered(anew))
    say = stage.answered(anew)
    assert say is not None and say.answered is not None
    assert say.answered.said != stage.said[0].answered.said  # type: ignore[union-attr]


def test_one_that_answers_otherwise_may_stop_the_run() -> None:
    stage, _ = diverging(replace(SETTINGS, on_divergence="stop"))
    stage.until(lambda: stage.stopped)
    assert "turn 0 otherwise than before" in stage.stopped[0] and len(stage.kept) == 1


def test_a_context_that_is_full_ends_the_episode_and_says_so() -> None:
    config = replace(SETTINGS, max_given_tokens=5)  # two answers of two tokens, and no third
    stage = Stage(World(turns=9), config)
    answers, judged = policy(stage)
    assert [bool(said[0]) for said in answers] == [True, True, False]
    assert [turn.metrics.get(CONTEXT_FULL) for turn in judged.turns] == [None, None, 1.0]
    assert all(turn.reward > 0 for turn in judged.turns), "what it was worth still counts"


def test_time_that_is_used_up_ends_it_with_its_turn() -> None:
    stage = Stage(World(turns=9), replace(SETTINGS, episode_seconds=2.5))  # of one a turn
    _, judged = policy(stage)
    assert [turn.metrics.get(OUT_OF_TIME) for turn in judged.turns] == [None, None, 1.0]


def test_saying_nothing_is_a_failure() -> None:
    class Silent(World):
        def answer(self, record: TurnAnswered, had: Sequence[bytes]) -> TurnAnswered:
            return record

    stage = Stage(Silent(turns=1))
    stage.ask(question(None))
    stage.until(lambda: stage.said)
    assert "said nothing" in stage.kept[0].why


@dataclass(frozen=True)
class Timed(World):
    """One of its metrics is a time."""

    seconds: tuple[float, ...] = ()  # of each turn

    def answer(self, record: TurnAnswered, had: Sequence[bytes]) -> TurnAnswered:
        answered, seconds = super().answer(record, had), self.seconds[len(had) - 1]
        return msgspec.structs.replace(answered, seconds=seconds, metrics={"seconds": seconds})


def test_times_are_those_of_the_first_time() -> None:
    """Made again on a slow host, it is not out of time, and has said nothing else."""
    config = replace(SETTINGS, episode_seconds=5.0, on_divergence="stop")
    stage = Stage(Timed(turns=9, seconds=(2.0, 2.0)), config)
    stage.ask(question(None))
    stage.until(lambda: stage.said)
    given = stage.said[0].answered.given  # type: ignore[union-attr]
    stage.start_again(torn=False)
    stage.world = Timed(turns=9, seconds=(60.0, 2.0))
    asked = question(given, None)
    stage.ask(asked)
    stage.until(lambda: stage.answered(asked) or stage.stopped)
    assert not stage.stopped
    assert [record.metrics for record in stage.kept] == [{"seconds": 2.0}] * 2
    assert not stage.kept[-1].over, "4 s of 5 s"


def test_a_manager_that_has_lost_its_newest_attempts_is_answered() -> None:
    """It lost the end of its journal, and samples again what had been discarded before."""
    stage = Stage(World(turns=3))
    stage.ask(question(None, attempt=1))
    stage.until(lambda: stage.said)
    again = question(None, attempt=0)
    stage.ask(again)
    stage.until(lambda: stage.answered(again))
    finished = replace(again, finished=True)
    stage.ask(finished)
    assert stage.judged


def test_an_older_verdict_is_not_asked_for_in_place_of_a_newer_turn() -> None:
    """A server is not believed, its turns are discarded, and the trainer asks about them late."""
    stage = Stage(World(turns=3))
    stage.ask(question(None))
    stage.go_on()
    newer = asked_about([(ids(7), None)], attempt=1)
    stage.ask(newer)
    stage.ask(replace(question(None), finished=True))
    stage.until(lambda: stage.said)
    assert [say.question for say in stage.said] == [newer]
    assert stage.said[0].answered == stage.kept[-1]
    assert stage.kept[-1].sampled == ids(7)


def test_pauses_between_attempts_grow() -> None:
    stage, pauses = Stage(World(turns=1)), list[float]()
    stage.ask(question(None))
    while len(pauses) < 6:
        if isinstance(stage.under_way, WaitSeconds):
            pauses.append(stage.under_way.seconds)
        if isinstance(stage.under_way, Open):
            stage.lose()
        else:
            stage.go_on()
    assert pauses == sorted(pauses) and pauses[-1] > 8 * pauses[0]
