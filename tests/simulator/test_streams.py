"""Streams do not meet, and whatever is compared has met the same draws."""

import itertools
import json

import numpy as np

from rlboost_jax.simulator.simulation_run import simulate
from rlboost_jax.simulator.streams import NAMES, stream
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config


def test_no_two_streams_are_alike():
    """Neither by name nor by seed nor by path: a seed 0 and a path (0,) are no alias either."""
    makers = [(name, seed, path) for name in NAMES for seed in (0, 1) for path in ((), (0,), (1,))]
    firsts = {maker: stream(maker[0], maker[1], *maker[2]).random(4).tolist() for maker in makers}
    for one, other in itertools.combinations(makers, 2):
        assert firsts[one] != firsts[other], (one, other)


def test_they_are_uncorrelated():
    draws = [stream(name, 5).standard_normal(10_000) for name in NAMES]
    for one, other in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_all_systems_meet_the_same_responses_and_the_same_market(tmp_path):
    """Whatever they do with them: common random numbers."""
    seen = []

    class Watched(World):
        def __init__(self, config, changes, **others):
            seen.append((others["seed"], tuple(changes)))
            super().__init__(config, changes, **others)

    config = make_config(
        market__kind="hazard",
        market__segments=((0.0, 0.05),),
        market__hazard__lifetime_hours=0.05,
        num_steps=0,
        settling_steps=0,
        num_seeds=2,
        systems=("rlboost", "no_migration", "no_seeding"),
    )
    simulate(config, tmp_path, world=Watched)
    for seed in (0, 1):
        (market,) = {changes for own, changes in seen if own == seed}
        assert any(not change.added for change in market)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    tokens: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        tokens.setdefault((row["seed"], row["step"]), set()).add(row["response_tokens"])
    assert all(len(each) == 1 for each in tokens.values())
    assert tokens[0, 0] != tokens[1, 0]
