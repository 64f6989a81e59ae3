"""When a program of ours may run: against a tenant that then does all it has, one by one."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from rlboost_jax.engine.costs import Costs
from rlboost_jax.engine.shared import Wants
from rlboost_jax.rollout.sharing.slack import (
    MARGIN,
    RESERVE,
    Due,
    Latencies,
    Shape,
    allowance,
    slack,
)

LATENCIES = Latencies(first_token_seconds=0.5, token_seconds=0.05)
SHAPE = Shape(max_steps=8, decode_rows=(8, 16, 32), token_rows=64)
jobs = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 0.05), st.booleans()), min_size=1, max_size=8
)


def dues_of(work: list[tuple[float, float, bool]], now: float) -> list[Due]:
    """Dues of jobs (due, seconds) that a tenant does in the order in which they are due."""
    dues, before = [], 0.0
    for at, seconds, first in sorted(work):
        before += seconds
        dues.append(Due(at=now + at, needs=before, first=first))
    return dues


@given(jobs, st.floats(-10.0, 1e6))
def test_held_for_the_slack_nothing_is_late_and_for_longer_something_is_tight(
    work: list[tuple[float, float, bool]], now: float
) -> None:
    ours = slack(LATENCIES, dues_of(work, now), now)
    done, spare = now + ours, []
    for at, seconds, first in sorted(work):
        done += seconds
        kept = RESERVE * 0.5 if first else MARGIN * 0.05
        spare.append(now + at - done - kept)
    assert min(spare) >= -1e-6
    assert min(spare) <= 1e-6, "and not a moment is given away"


def test_a_tenant_with_nothing_to_do_sets_no_limit() -> None:
    assert slack(LATENCIES, [], 3.0) == math.inf


costs = st.builds(
    lambda base, row, mixed: (
        Costs()
        .mixed_took(mixed)
        .steps_took(8, 1, base + 8 * row)
        .steps_took(16, 1, base + 16 * row)
        .steps_took(32, 1, base + 32 * row)
    ),
    st.floats(0.001, 0.02),
    st.floats(0.0, 0.001),
    st.floats(0.002, 0.1),
)


@given(
    st.floats(0.0, 0.3),
    st.builds(Wants, ready=st.integers(0, 32), prefill_tokens=st.integers(0, 99)),
    costs,
)
def test_what_is_allowed_fits_and_no_larger_program_of_its_kind_does(
    seconds: float, wants: Wants, known: Costs
) -> None:
    found = allowance(seconds, wants, known, SHAPE)
    assume(wants.ready or wants.prefill_tokens)
    prefills = wants.prefill_tokens > 0 and known.mixed <= seconds
    if found is None:
        assert not prefills and (not wants.ready or known.step(8) > seconds)
        return
    assert (found.prefill_tokens > 0) == prefills
    assert 1 <= found.steps <= SHAPE.max_steps and found.rows in SHAPE.decode_rows
    if not prefills:
        assert found.steps * known.step(found.rows) <= seconds + 1e-9
        if found.rows >= wants.ready and found.steps < SHAPE.max_steps:
            assert (found.steps + 1) * known.step(found.rows) > seconds - 1e-9
        if found.rows < wants.ready and found.rows < 32:
            assert known.step(2 * found.rows) > seconds


def test_what_never_ran_is_tried_and_then_known() -> None:
    wants = Wants(ready=20, prefill_tokens=0)
    assert allowance(0.001, wants, Costs(), SHAPE) is not None
    slow = Costs().steps_took(32, 1, 1.0)
    assert allowance(0.001, wants, slow, SHAPE) is None, "less takes no longer than more"
    assert slow.steps_took(8, 4, 0.002).step(8) < 0.01


def test_a_cost_is_what_it_was_lately_and_what_it_is_off_by() -> None:
    known = Costs()
    for n in range(200):
        known = known.steps_took(8, 2, 2 * (0.010 + 0.002 * (n % 2)))
    assert 0.012 < known.step(8) < 0.020
    for _ in range(100):
        known = known.steps_took(8, 1, 0.001)
    assert abs(known.step(8) - 0.001) < 1e-4
