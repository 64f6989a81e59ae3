"""A device with two tenants in virtual time: no token late, and little lost by not knowing."""

from functools import partial

import numpy as np
import pytest

from benchmarks.shared_device import (
    MIXED,
    AllKnown,
    Programs,
    Rollouts,
    Tenant,
    by_slack,
    draws,
    in_turns,
    least_tenant_seconds,
    most_rate,
    poisson,
    rollout_rate,
    simulate,
    tenant_first,
)
from rlboost_jax.rollout.sharing.slack import Latencies


def programs_of(spread: float) -> Programs:
    """Make programs of two models, on a machine that takes up to `spread` longer."""
    random = np.random.default_rng(5)
    usual = {MIXED: 0.010, 8: 0.004, 16: 0.005, 32: 0.006}
    seconds = {
        kind: (mean * random.uniform(1.0, 1.0 + spread, 64)).tolist()
        for kind, mean in usual.items()
    }
    return Programs(seconds, token_rows=64, max_steps=8)


LATENCIES = Latencies(first_token_seconds=0.5, token_seconds=0.05)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_no_token_is_late_at_half_the_rate_and_rollouts_get_their_part(spread: float) -> None:
    programs = programs_of(spread)
    tenant = partial(Tenant, programs, LATENCIES, 32)
    ours = partial(Rollouts, programs, 32, 64, 16)
    requests = poisson(most_rate(tenant) / 2, 600, seed=9)
    result = simulate(requests, tenant(), ours(), by_slack, draws(programs, 4))
    assert result.missed_tokens == result.late_requests == 0
    alone = rollout_rate(ours)
    least = least_tenant_seconds(requests, tenant()) / requests[-1].arrival
    assert 0.3 * alone < result.rollout_tokens_per_second < (1 - least) * alone
    first = simulate(requests, tenant(), ours(), tenant_first, draws(programs, 4))
    assert first.missed_tokens == 0
    assert first.rollout_tokens_per_second < result.rollout_tokens_per_second / 3
    turns = simulate(requests, tenant(), ours(), in_turns(), draws(programs, 4))
    assert turns.late_requests > 100, "deadlines that time slicing would keep show nothing"


def test_all_that_knowing_the_future_gives_is_a_tenth() -> None:
    programs = programs_of(0.3)
    tenant = partial(Tenant, programs, LATENCIES, 32)
    ours = partial(Rollouts, programs, 32, 64, 16)
    requests = poisson(most_rate(tenant) / 2, 200, seed=9)
    policy = simulate(requests, tenant(), ours(), by_slack, draws(programs, 4))
    every = AllKnown(requests, programs)
    known = simulate(requests, tenant(), ours(), every, programs.mean)
    assert known.missed_tokens == 0
    assert policy.rollout_tokens_per_second >= 0.9 * known.rollout_tokens_per_second


def test_a_served_request_gets_all_its_tokens() -> None:
    programs = programs_of(0.0)
    tenant = Tenant(programs, LATENCIES, 4)
    requests = poisson(50.0, 300, seed=2)
    ours = Rollouts(programs, 32, 64, 16)
    simulate(requests, tenant, ours, by_slack, programs.mean)
    assert len(tenant.firsts) == 300
    assert len(tenant.gaps) + 300 == sum(r.tokens for r in requests)
