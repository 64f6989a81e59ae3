"""What a trainer of several processes refuses before it does anything."""

from dataclasses import replace

import pytest

from rlboost_jax.learner.opening import Makers, plan_of
from rlboost_jax.learner.processes.following import follow_training
from rlboost_jax.learner.processes.world import ALONE, LagNeedsOneProcess, World, check_lag

TWO = [World(index=index, count=2, coordinator="127.0.0.1:1") for index in range(2)]


def test_older_versions_are_kept_by_one_process(config, tmp_path):
    run = replace(config, algorithm=replace(config.algorithm, lag=2))
    says = r"algorithm\.lag is 2 and the trainer has 2 processes; .*set algorithm\.lag to 0"
    with pytest.raises(LagNeedsOneProcess, match=says):
        plan_of(run, tmp_path, TWO[0], Makers())
    with pytest.raises(LagNeedsOneProcess, match=says):
        follow_training(run, tmp_path, TWO[1])
    check_lag(run, ALONE)
    check_lag(config, TWO[0])
    assert not list(tmp_path.iterdir())
