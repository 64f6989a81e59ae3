"""When a supervisor has waited long enough. All times are in the arguments."""

import math

import pytest

from rlboost_jax.platform.pulse import COMPILING, ORDERS, Sign
from rlboost_jax.platform.stalls import (
    LEAST_SECONDS,
    MOST_SECONDS,
    STEPS,
    TIMES,
    UNKNOWN_SECONDS,
    Patience,
    after_look,
    bound_seconds,
)

LOOK = 5.0  # seconds between two looks


class Watched:
    """A trainer that somebody looks at."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience, self.count, self.steps = patience or Patience(), 0, 0

    def does(
        self, phase: str, seconds: float, *, beats: float = 1.0, stopped: bool = False
    ) -> None:
        """It is in a phase for so long, and does something each `beats` seconds."""
        since, self.count = 0.0, self.count + (phase != self.patience.sign.phase)
        for _ in range(math.ceil(seconds / LOOK)):
            since += LOOK
            if since >= beats:
                since, self.count = 0.0, self.count + 1
            self.look(phase, stopped=stopped)

    def look(self, phase: str, seconds: float = LOOK, *, stopped: bool = False) -> None:
        sign = Sign(count=self.count, steps=self.steps, phase=phase)
        self.patience = after_look(self.patience, sign, seconds, stopped=stopped)

    def hangs(self, given: float | None = None) -> bool:
        bound = bound_seconds(self.patience, given)
        return bound is not None and self.patience.still >= bound

    def steps_of(self, micro_batch_seconds: float, number: int = STEPS) -> None:
        for _ in range(number):
            self.does("stream", 30)
            self.does("micro-batch", 4 * micro_batch_seconds, beats=micro_batch_seconds)
            self.does("update", 2)
            self.steps += 1


ONCE = ("starting", "compiling the learner's programs", COMPILING, "warming the model up", "")


@pytest.mark.parametrize("phase", [*ONCE, "stream", "checkpoint", "evaluate", "step"])
def test_what_is_done_once_or_waits_for_others_may_take_two_hours(phase):
    trainer = Watched()
    trainer.steps_of(2)
    trainer.does(phase, UNKNOWN_SECONDS - 10, beats=1e9)
    assert not trainer.hangs()
    trainer.does(phase, 20, beats=1e9)
    assert trainer.hangs()


def test_the_first_steps_compile_on_their_way():
    trainer = Watched()
    trainer.steps_of(2, number=STEPS - 1)
    trainer.does("micro-batch", LEAST_SECONDS * 3, beats=1e9)
    assert not trainer.hangs()


def test_a_quick_trainer_that_stands_still_is_ended_after_five_minutes():
    trainer = Watched()
    trainer.steps_of(2)
    trainer.does("micro-batch", LEAST_SECONDS - 5, beats=1e9)
    assert not trainer.hangs()
    trainer.does("micro-batch", 10, beats=1e9)
    assert trainer.hangs()


def test_a_slow_one_gets_ten_times_its_longest_silence():
    trainer = Watched()
    trainer.steps_of(90)
    trainer.does("micro-batch", TIMES * 90 - 20, beats=1e9)
    assert not trainer.hangs()
    trainer.does("micro-batch", 100, beats=1e9)
    assert trainer.hangs()


def test_the_first_step_says_nothing_about_later_steps():
    trainer = Watched()
    trainer.does("micro-batch", 1200, beats=600)  # it compiled
    trainer.steps_of(2, number=STEPS + 1)
    assert bound_seconds(trainer.patience, None) == LEAST_SECONDS


def test_a_wait_for_a_fleet_that_generates_slowly_has_no_end():
    trainer = Watched()
    trainer.steps_of(2)
    trainer.does("stream", 20_000, beats=3_000)  # a token of anybody's every 50 minutes
    assert not trainer.hangs()
    assert trainer.patience.longest < LEAST_SECONDS / TIMES, "nor is anything learnt from it"


def test_a_process_that_waits_for_process_0_is_that_ones_supervisors_business():
    trainer = Watched()
    trainer.does(ORDERS, 50_000, beats=1e9)
    assert bound_seconds(trainer.patience, None) is None is bound_seconds(trainer.patience, 60.0)


def test_a_host_that_slept_and_a_clock_that_jumped_count_little():
    trainer = Watched()
    trainer.steps_of(2)
    trainer.does("micro-batch", 5, beats=1e9)
    trainer.look("micro-batch", seconds=30_000.0)
    assert not trainer.hangs()
    assert trainer.patience.still <= 5 + MOST_SECONDS + LOOK


def test_one_that_was_stopped_is_not_ended_as_it_goes_on():
    trainer = Watched()
    trainer.steps_of(2)
    trainer.does("micro-batch", LEAST_SECONDS * 4, beats=1e9, stopped=True)
    assert not trainer.hangs()
    trainer.look("micro-batch")
    assert not trainer.hangs()
    trainer.does("micro-batch", 10)
    assert trainer.patience.longest < LEAST_SECONDS / TIMES, "that was no silence of its own"
    trainer.does("micro-batch", UNKNOWN_SECONDS + 5, beats=1e9, stopped=True)
    assert trainer.hangs(), "for hours: nobody has it in mind any more"


def test_what_a_person_says_goes_for_everything_but_never():
    trainer = Watched()
    trainer.does("starting", 61, beats=1e9)
    assert trainer.hangs(60.0) and not trainer.hangs(90.0) and not trainer.hangs()
    trainer.does("starting", 100_000, beats=1e9)
    assert not trainer.hangs(0.0)


def test_the_next_trainer_begins_anew_and_is_no_slower():
    trainer = Watched()
    trainer.steps_of(90)
    later = Watched(trainer.patience.of_next_start())
    later.does("micro-batch", LEAST_SECONDS * 3, beats=1e9)
    assert not later.hangs()
    later.steps_of(2)
    later.does("micro-batch", TIMES * 90 - 20, beats=1e9)
    assert not later.hangs()
