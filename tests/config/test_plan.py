import dataclasses

import jax
import pytest

from configs import base
from rlboost_jax.config import plan
from rlboost_jax.config.load import run_config
from rlboost_jax.config.records import RunConfig
from rlboost_jax.models.params import abstract_params


@pytest.fixture
def config() -> RunConfig:
    return run_config(base.get_config())


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_counts_the_parameters_that_the_model_has(
    config: RunConfig, tie_embeddings: bool, qk_norm: bool
) -> None:
    model = dataclasses.replace(config.model, tie_embeddings=tie_embeddings, qk_norm=qk_norm)
    leaves = jax.tree.leaves(abstract_params(model))
    assert plan.num_parameters(model) == sum(leaf.size for leaf in leaves)


def test_memory_by_hand(config: RunConfig) -> None:
    assert plan.num_parameters(config.model) == 324_352
    assert plan.learner_bytes(config) == {
        "parameters": 4 * 324_352,
        "gradients": 4 * 324_352,
        "optimizer": 8 * 324_352,
    }
    # 64 slots of 13 pages of 16 tokens; 2 layers of 2 heads of 32 floats, twice (K and V)
    assert plan.engine_bytes(config)["kv pool"] == 64 * 13 * 16 * 2 * 2 * 32 * 4 * 2
    half = dataclasses.replace(
        config, engine=dataclasses.replace(config.engine, kv_dtype="bfloat16")
    )
    assert plan.engine_bytes(half)["kv pool"] == plan.engine_bytes(config)["kv pool"] // 2


def test_a_reference_model_takes_its_place(config: RunConfig) -> None:
    algorithm = dataclasses.replace(config.algorithm, kl_coefficient=0.1)
    with_kl = dataclasses.replace(config, algorithm=algorithm)
    assert plan.learner_bytes(with_kl)["reference"] == 4 * 324_352


def test_the_text_names_processes_memory_fleet_and_cost(config: RunConfig) -> None:
    text = plan.plan_text(config, workdir="runs/x")
    for part in (
        "runs/x",
        "1 trainer, 1 manager, 0 to 2 rollout servers",
        "324,352 parameters",
        "14.2 MiB (weights 1.2 MiB + kv pool 13.0 MiB)",
        "at most $15.79 an hour",
        "nothing is taken away",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"provider": "none"}, "servers join by hand"),
        ({"trace": "synthetic"}, "trace synthetic at 60x (mean life 1200 s"),
        ({"trace": "spot.csv"}, "trace spot.csv at 60x"),
    ],
)
def test_the_fleet_in_words(config: RunConfig, changes: dict[str, str], says: str) -> None:
    fleet = dataclasses.replace(config.fleet, **changes)
    assert says in plan.plan_text(dataclasses.replace(config, fleet=fleet))
