"""When leases are renewed, and what of an answer's time is the line's."""

import asyncio
import itertools

import pytest

from rlboost_jax.rollout.renewal_timing import FEW, QUICKEST, RenewalTiming
from rlboost_jax.sequences.shared_limits import FIRST_RENEWALS


def test_the_longest_answer_since_the_last_renewal_counts() -> None:
    renewals = RenewalTiming(lambda: 0.0)
    for moment in (1.0, 1.3, 1.6):
        renewals.asked(moment)
    renewals.answered(3.0)
    renewals.answered(3.0)
    assert renewals.take_longest() == 2.0
    assert renewals.take_longest() == 0.0
    renewals.answered(3.5)
    renewals.answered(9.0)  # nobody had asked
    assert renewals.take_longest() == 3.5 - 1.6


def test_what_busy_hosts_take_is_not_the_lines() -> None:
    """Ours is busy for 0.3 s of the second, the manager for 0.5 s since its last answer."""
    ours = iter([0.0, 0.0, 10.0, 10.3])
    renewals = RenewalTiming(lambda: next(ours))
    renewals.asked(0.0)
    renewals.answered(0.1, busy=70.0)  # what it did before is not known
    assert renewals.take_longest() == 0.1
    renewals.asked(1.0)
    renewals.answered(2.0, busy=70.5)
    assert abs(renewals.take_longest() - 0.2) < 1e-9


def test_a_busy_host_makes_no_line_shorter_than_it_is() -> None:
    """A way of 0.3 s on a host that waits for a processor half of the time: what it waited while
    frames were on their way does not come off; what an answer lay here does."""
    busy = itertools.count(step=0.15)
    renewals = RenewalTiming(lambda: next(busy))
    for number in range(FEW + 1):
        late = 0.1 * (number % 2)
        renewals.asked(1.0 * number)
        renewals.answered(1.0 * number + 0.3 + late)
        measured = renewals.take_longest()
    assert measured == pytest.approx(0.3)
    renewals.asked(100.0)
    renewals.answered(102.0)  # lost once
    assert renewals.take_longest() == pytest.approx(2.0 - 0.15)


def test_what_may_have_been_lost_is_not_taken_for_punctual() -> None:
    """0.7 s late on a host that waited for a processor for 0.6 s of it: nobody can say why."""
    ours = iter([0.0] * (2 * FEW + 1) + [0.6])
    renewals = RenewalTiming(lambda: next(ours))
    for number in range(FEW):
        renewals.asked(1.0 * number)
        renewals.answered(1.0 * number + 0.3)
    assert renewals.take_longest() == pytest.approx(0.3)
    renewals.asked(50.0)
    renewals.answered(51.0)
    assert renewals.take_longest() == 0.0


def test_an_answer_takes_some_time_whatever_the_clocks_say() -> None:
    ours = iter([0.0, 5.0])
    renewals = RenewalTiming(lambda: next(ours))
    renewals.asked(1.0)
    renewals.answered(1.1)
    assert renewals.take_longest() == QUICKEST


def test_the_first_renewals_follow_each_other_as_soon_as_they_are_answered() -> None:
    async def scenario() -> bool:
        renewals = RenewalTiming(lambda: 0.0)
        sent = 0
        while sent < FIRST_RENEWALS:  # hours between renewals: none of them is waited for
            await renewals.next_one(3600.0)
            renewals.asked(0.0)
            renewals.answered(0.1)
            sent += 1
        late = asyncio.ensure_future(renewals.next_one(3600.0))
        await asyncio.sleep(0)
        waits = not late.done()
        late.cancel()
        return waits

    assert asyncio.run(scenario())
