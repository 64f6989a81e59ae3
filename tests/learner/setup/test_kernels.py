"""Whatever of a learner has experts runs the products that `learner.experts` names."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from configs import base
from rlboost_jax.learner.packing import empty
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.setup.kernels import without_compiled
from rlboost_jax.learner.setup.lessons import lessons_of
from rlboost_jax.learner.setup.warmup import warm_up
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig

ROWS, ROW_TOKENS = 2, 64


def run_with(experts: str) -> RunConfig:
    config = base.get_config()
    config.model.embed_dim, config.model.num_layers = 16, 1
    config.model.num_experts, config.model.experts_per_token, config.model.expert_dim = 4, 2, 16
    config.algorithm.routing_replay = False
    config.learner.attention, config.learner.experts = "dense", experts
    return run_config(config)


def policy(run: RunConfig) -> Any:
    step = PolicyPrograms(
        run.model,
        run.learner,
        run.algorithm,
        run.sampling,
        num_updates=1,
        mesh=make_mesh((1, 1, 1)),
    )
    return step.logprobs(init_params(run.model, 0), None, empty(ROWS, ROW_TOKENS))


def critic(run: RunConfig) -> Any:
    step = CriticPrograms(
        run.model, run.learner, run.algorithm, num_updates=1, mesh=make_mesh((1, 1, 1))
    )
    state = step.init(init_params(run.model, 0))
    params = {**state.params, "value": {"kernel": np.linspace(-1, 1, 16, dtype=np.float32)}}
    return step.values(params, empty(ROWS, ROW_TOKENS))


def warmed_up(run: RunConfig) -> Any:
    run = replace(run, warmup=replace(run.warmup, max_updates=1, habit_updates=1))
    params = init_params(run.model, 0)
    return warm_up(run, lessons_of(run), params, mesh=make_mesh((1, 1, 1)))


PASSES = [policy, critic, warmed_up]


@pytest.mark.parametrize("of", PASSES)
def test_products_by_any_name_are_the_same_up_to_rounding(of: Any) -> None:
    auto, xla, blocks = (jax.tree.leaves(of(run_with(how))) for how in ("auto", "xla", "blocks"))
    for one, same, other in zip(auto, xla, blocks, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(same).tobytes()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("of", PASSES)
def test_one_that_cannot_run_here_is_refused(of: Any) -> None:
    with pytest.raises(NotImplementedError, match="'mosaic_gpu' cannot run this: "):
        of(run_with("mosaic_gpu"))


def test_a_run_on_a_cpu_says_what_it_falls_back_to() -> None:
    run = run_config(base.get_config())
    line = without_compiled(run, missing=lambda: "its library has not been built; run this")
    assert line == (
        "kernels on CPU: plain JAX, which is slower than those in C++: its library has not been "
        "built; run this"
    )
    assert without_compiled(run, missing=lambda: None) == ""
    named = replace(run.engine, attention="xla"), replace(run.learner, attention="dense")
    chosen = replace(run, engine=named[0], learner=named[1])
    assert without_compiled(chosen, missing=lambda: "it is not there") == ""
