"""Random schedules of faults in virtual time, checked after every event.

Each schedule is a seed. Whatever happens, the trainer gets every (step, sample) once and
bit for bit as the sampler says, and all steps end once the faults stop.
"""

from collections import Counter

import pytest

from tests.schedules.__main__ import carry_out, explain
from tests.schedules.faults import KINDS, Fault, Schedule, fails, run, schedule_of, shrink
from tests.schedules.lies import Lie

SCHEDULES = 5_000
SOAKED = 1_000_000
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_once_and_right(part: int) -> None:
    run_all(range(part, SCHEDULES, PARTS))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_once_and_right_for_long(part: int) -> None:
    run_all(range(SCHEDULES + part, SCHEDULES + SOAKED, PARTS))


def run_all(seeds: range) -> None:
    _, failed, _ = carry_out(seeds)
    assert failed < 0, explain(failed)


def test_what_is_not_needed_may_be_in_the_making_when_training_begins() -> None:
    """A made-up response is on its way a second time as the doubt of it comes in; its prompt is
    one that the trainer can do without."""
    run(
        Schedule(
            seed=50667633,
            seeding=True,
            extends=True,
            servers=0,
            machines=2,
            faults=(
                Fault(at=0.102, kind="join", target=2, amount=0.577),
                Fault(at=0.205, kind="term", target=2, amount=0.612),
                Fault(at=0.507, kind="wedge", target=0, amount=0.486),
                Fault(at=1.609, kind="take", target=3, amount=0.279),
                Fault(at=1.615, kind="lie", target=1, amount=0.763),
                Fault(at=1.999, kind="cut_trainer", target=5, amount=0.066),
            ),
        )
    )


def test_a_manager_that_stood_still_hears_of_it_before_what_came_meanwhile() -> None:
    """The provider's word is due in the very moment in which the manager goes on."""
    run(
        Schedule(
            seed=24007334,
            seeding=True,
            extends=False,
            servers=0,
            machines=1,
            faults=(
                Fault(at=0.29, kind="stall", target=5, amount=0.532),
                Fault(at=2.95, kind="misreport", target=7, amount=0.115),
            ),
            lag=1,
        )
    )


def test_a_trainer_tells_of_more_seconds_than_the_manager_has_seen() -> None:
    """The step began with a manager whose journal ends before that; the next one would have
    predicted steps of less than no time, and no best size of a fleet among them."""
    run(
        Schedule(
            seed=50839667,
            seeding=True,
            extends=False,
            servers=1,
            machines=0,
            faults=(
                Fault(at=0.029, kind="fill_disk", target=2, amount=0.427),
                Fault(at=0.235, kind="join", target=0, amount=0.406),
                Fault(at=0.308, kind="manager", target=5, amount=0.755),
            ),
        )
    )


def test_nobody_is_there_as_a_step_has_been_learnt_of() -> None:
    """And the next one's order is to be chosen: no engine could be planned with."""
    run(
        Schedule(
            seed=3751,
            seeding=False,
            extends=False,
            servers=1,
            machines=0,
            faults=(Fault(at=1.423, kind="kill", target=3, amount=0.281),),
        )
    )


def test_a_server_that_was_sent_home_hangs_and_is_ended() -> None:
    """Nothing waits for it from then on, though it is not over yet."""
    run(
        Schedule(
            seed=21146639,
            seeding=True,
            extends=False,
            servers=1,
            machines=1,
            faults=(
                Fault(at=0.32, kind="join", target=2, amount=0.482),
                Fault(at=0.373, kind="slow", target=3, amount=0.347),
                Fault(at=0.759, kind="term", target=4, amount=0.387),
                Fault(at=0.856, kind="break_frame", target=5, amount=0.8),
                Fault(at=1.348, kind="join", target=1, amount=0.77),
                Fault(at=2.773, kind="wedge", target=6, amount=0.814),
                Fault(at=3.281, kind="wedge", target=1, amount=0.617),
                Fault(at=0.952, kind="dismiss", target=2, amount=0.0),
                Fault(at=0.936, kind="forget", target=5, amount=0.193),
                Fault(at=1.247, kind="neighbour", target=3, amount=0.0),
            ),
            lag=2,
            turns=1,
        )
    )


def test_schedules_hold_every_fault() -> None:
    """The schedules above would prove little if they were calm."""
    seen: Counter[str] = Counter()
    recorded: set[str] = set()
    for seed in range(170):
        world = run(schedule_of(seed)).world
        seen.update(world.seen)
        recorded |= {r.kind for r in world.records}
    assert set(seen) == {*KINDS, "parked", "scored"}
    assert min(seen.values()) >= 10, seen
    assert recorded >= {
        *("joined", "ready", "notice", "lost", "drained", "rejected", "pulled", "published"),
        *("migrated", "window_closed", "resumed", "working", "recovered", "teaches"),
    }


@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize("lie", Lie)
def test_a_server_that_chooses_tokens_is_quarantined(lie: Lie, turns: int) -> None:
    """And the run ends with the right tokens; `run` checks that no other is suspected."""
    caught = 0
    for seed in range(5):
        lies = Fault(at=0.3, kind="lie", target=0, amount=(lie.value - 0.5) / len(Lie))
        world = run(
            Schedule(
                seed=seed,
                seeding=False,
                extends=True,
                servers=2,
                machines=0,
                faults=(lies,),
                turns=turns,
                several=turns > 1,
            )
        ).world
        assert [s.lie for s in world.servers if s.ever_lied] == [lie]
        caught += any(record.kind == "quarantined" for record in world.records)
    assert caught == 5 or (lie is Lie.SELDOM and caught >= 3), (
        "of five runs of a few hundred tokens"
    )


def test_same_schedule_same_actions() -> None:
    """Nothing in the manager depends on hashes, clocks or chance."""
    first, second = run(schedule_of(5)).world, run(schedule_of(5)).world
    assert first.records == second.records
    assert first.trainer.reports == second.trainer.reports


def test_a_failing_schedule_is_cut_down_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One kill is all that is left where a check forbids kills."""
    from tests.schedules import faults

    real = faults.Run.kill

    def forbidden(one: faults.Run, fault: faults.Fault) -> bool:
        assert not real(one, fault), "killed"
        return False

    monkeypatch.setitem(faults.KINDS, "kill", (forbidden, faults.KINDS["kill"][1]))
    seed = next(seed for seed in range(100) if fails(schedule_of(seed)))
    smallest = shrink(schedule_of(seed))
    assert [fault.kind for fault in smallest.faults].count("kill") == 1
    assert len(smallest.faults) <= 2  # the second: a join, where nobody was there to be killed
    again = eval(repr(smallest), {"Schedule": Schedule, "Fault": faults.Fault})
    assert str(fails(again)).startswith("killed")
