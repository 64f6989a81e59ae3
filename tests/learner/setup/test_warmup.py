import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from rlboost_jax.data.tasks import Task
from rlboost_jax.learner.setup.lessons import TaskLessons, lessons_seed
from rlboost_jax.learner.setup.warmup import LOOK_EVERY, warm_up
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params, params_digest


class Counting(Task):
    """A task that notes what was asked of it."""

    worked = guessed = 0

    def worked_answer(self, problem):
        self.worked += 1
        return super().worked_answer(problem)

    def guess(self, problem, rng):
        self.guessed += 1
        return super().guess(problem, rng)


@pytest.fixture
def run(config):
    """`run(seed=1, max_updates=8)`: parameters, reports and the task of a warm-up."""

    def warm(seed=0, **changes):
        changed = replace(config, seed=seed, warmup=replace(config.warmup, **changes))
        task, reports = Counting(config.task), []
        params = warm_up(
            changed,
            TaskLessons(task, lessons_seed(changed)),
            init_params(config.model, 0),
            mesh=make_mesh((1, 1, 1)),
            report=lambda update, loss: reports.append((update, loss)),
        )
        return params, reports, task

    return warm


def test_the_skill_phase_ends_when_the_loss_says_so(run):
    _, reports, task = run(max_updates=200, target_loss=2.5, habit_updates=8)
    updates, losses = zip(*reports, strict=True)
    skill = next(u for u, loss in reports if loss < 2.5)
    assert 4 * LOOK_EVERY <= skill < 200
    assert updates == tuple(range(LOOK_EVERY, skill + 9, LOOK_EVERY))
    assert losses[0] < math.log(112) * 1.05  # a fresh model is close to uniform
    assert 0.5 < task.worked / (task.worked + task.guessed) < 0.75


def test_the_cap_ends_it_otherwise(run):
    _, reports, _ = run(max_updates=8, target_loss=0.0, habit_updates=4)
    assert [update for update, _ in reports] == [4, 8, 12]


def test_fractions_are_of_answers(run):
    _, _, task = run(max_updates=8, target_loss=0.0, habit_updates=0, worked_fraction=0.25)
    asked = task.worked + task.guessed
    assert abs(task.worked / asked - 0.25) < 4 * math.sqrt(0.25 * 0.75 / asked)


def test_everything_follows_from_the_seed(run):
    brief = {"max_updates": 4, "target_loss": 0.0, "habit_updates": 2}
    first, again, other = (params_digest(run(seed, **brief)[0]) for seed in (0, 0, 1))
    assert first == again != other


def test_no_updates_leave_the_parameters_alone(run, config):
    params, reports, task = run(max_updates=0)
    assert reports == []
    assert task.worked + task.guessed == 0
    expected = jax.tree.leaves(init_params(config.model, 0))
    for leaf, start in zip(jax.tree.leaves(params), expected, strict=True):
        np.testing.assert_array_equal(leaf, start)
