import dataclasses
from typing import Any, get_args

import jax
import jax.numpy as jnp
import pytest

from configs import base
from rlboost_jax.learner.update.tree_sum import TreeSum
from rlboost_jax.models.params import abstract_params
from rlboost_jax.settings import memory_estimates
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.model_config import Dtype, LoraConfig
from rlboost_jax.settings.run_config import RunConfig


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
    assert memory_estimates.num_parameters(model) == sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True, "output_bias": True},
        {"post_norms": True, "norm_offset": True},
        {"num_experts": 5, "experts_per_token": 2, "expert_dim": 24},
    ],
)
def test_counts_what_some_models_have_besides(config: RunConfig, changes: dict[str, Any]) -> None:
    model = dataclasses.replace(config.model, **changes)
    leaves = jax.tree.leaves(abstract_params(model))
    assert memory_estimates.num_parameters(model) == sum(leaf.size for leaf in leaves)
    assert memory_estimates.num_parameters(model) != memory_estimates.num_parameters(config.model)


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_knows_every_type(dtype: str) -> None:
    assert memory_estimates.BYTES[dtype] == jnp.dtype(dtype).itemsize


def test_scores_of_attention_by_hand(config: RunConfig) -> None:
    """4 heads, rows of 208 tokens by themselves; 8 of them on 2 devices, which share 4 heads."""

    def of(**learner: Any) -> int:
        changed = dataclasses.replace(config.learner, **learner)
        run = dataclasses.replace(config, learner=changed)
        return memory_estimates.attention_bytes_per_device(run)

    assert of(pack_rows=8) == 8 * 4 * 208**2 * 4
    assert of(pack_rows=8, mesh=(2, 1, 2)) == 4 * 2 * 208**2 * 4
    assert of(pack_rows=1, row_tokens=14_336) == 4 * 512**2 * 4, "two blocks"
    assert of(pack_rows=1, row_tokens=14_336, attention="dense") == 4 * 14_336**2 * 4
    assert of(pack_rows=1, row_tokens=300, attention="chunked") == 4 * 300**2 * 4
    assert "scores of attention 5.3 MiB, activations" in plan_text(
        dataclasses.replace(config, learner=dataclasses.replace(config.learner, pack_rows=8))
    )


def test_experts_by_hand(config: RunConfig) -> None:
    """2 rows of 208 tokens on each of 2 devices by 2, which share 8 experts and 832 choices."""
    model = dataclasses.replace(config.model, num_experts=8, experts_per_token=2, expert_dim=16)
    learner = dataclasses.replace(config.learner, pack_rows=4, mesh=(1, 2, 2))
    run = dataclasses.replace(config, model=model, learner=learner)
    E, rows = model.embed_dim, 896  # 416 and half a tile for each of 4, and a quarter: 840
    matrices = 4 * 3 * 4 * E * 16  # gathered, side by side, and the gradients of both
    assert model.dtype == "float32"
    assert memory_estimates.expert_bytes_per_device(run) == 4 * (rows * (3 * E + 6 * 16) + matrices)
    odd = dataclasses.replace(run, learner=dataclasses.replace(learner, mesh=(1, 1, 3)))
    rows = 1664 + 8 * 127 - 120  # all choices, on a device that has all experts
    matrices = 2 * 3 * 8 * E * 16
    assert memory_estimates.expert_bytes_per_device(odd) == 4 * (rows * (3 * E + 6 * 16) + matrices)
    assert memory_estimates.expert_bytes_per_device(config) == 0
    assert "a layer of experts" in plan_text(run)
    assert "a layer of experts" not in plan_text(config)


def test_activations_by_hand(config: RunConfig) -> None:
    """2 rows of 208 tokens on a device: 2 layers of 128, 4 heads of 32 (keys: 2), 256 hidden."""

    def of(remat: str, *mesh: int) -> int:
        learner = dataclasses.replace(config.learner, remat=remat, mesh=mesh, pack_rows=4)
        return memory_estimates.activation_bytes_per_device(
            dataclasses.replace(config, learner=learner)
        )

    def numbers(kept: int, tokens: int = 416) -> int:
        return tokens * (2 * kept + 8 * 128 + 5 * 256)

    assert of("full", 2, 1, 1) == of("full", 1, 2, 1) == 4 * numbers(128)
    assert of("attention", 2, 1, 1) == 4 * numbers(128 + 128)
    products = 2 * 128 + (128 + 2 * 64) + 2 * 256
    assert of("dots", 2, 1, 1) == 4 * numbers(128 + 128 + products)
    assert of("none", 2, 1, 1) == 4 * numbers(128 + 128 + 2 * products)
    halves = 832 * (2 * (128 + 64) + 8 * 128 + 5 * 128)
    assert of("attention", 1, 1, 2) == 4 * halves
    assert "activations 5.5 MiB, log-probabilities" in plan_text(
        dataclasses.replace(config, learner=dataclasses.replace(config.learner, pack_rows=1))
    )


def test_a_gradient_takes_a_layer_s_work_or_a_block_of_logits(config: RunConfig) -> None:
    learner = dataclasses.replace(config.learner, pack_rows=4, remat="full")
    run = dataclasses.replace(config, learner=learner)
    N, E, V = 4 * 208, 128, 112
    kept = 4 * N * 2 * E + 8 * E * V + 4 * N * E  # residual streams, matrix and sums
    layer = 4 * N * (8 * E + 5 * 256) + memory_estimates.attention_bytes_per_device(run)
    assert memory_estimates.gradient_bytes_per_device(run) == kept + layer
    wide = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=2**14))
    kept += 8 * E * (2**14 - V)
    assert memory_estimates.gradient_bytes_per_device(wide) == kept + 8 * N * 2**14


def test_logprobs_by_hand(config: RunConfig) -> None:
    """A vocabulary of 112 over 2 devices that divide it, and over 3 that do not."""
    learner = dataclasses.replace(config.learner, pack_rows=4)

    def of(mesh: tuple[int, int, int] = (1, 1, 1), **changes: Any) -> int:
        mesh_of = dataclasses.replace(learner, mesh=mesh)
        return memory_estimates.logprob_bytes_per_device(
            dataclasses.replace(config, learner=mesh_of, **changes)
        )

    N, E, V = 4 * 208, config.model.embed_dim, 112
    assert of() == 8 * E * V + 4 * N * E + 8 * N * V, "the matrix twice, rows, one block"
    assert of((1, 1, 2)) == 4 * E * V + 4 * N * E + 4 * N * V
    assert of((1, 1, 3)) == of()
    assert of((1, 2, 1)) == 8 * E * V + 2 * N * E + 4 * N * V
    adapted = dataclasses.replace(config.model, lora=LoraConfig(rank=4))
    assert of(model=adapted) == of() - 4 * E * V, "a matrix that is not trained"
    cut = dataclasses.replace(config.sampling, top_p=0.9)
    assert of((1, 1, 2), sampling=cut) == of()
    large = dataclasses.replace(config.model, dtype="bfloat16", vocab_size=2**20)
    rows = 2**8  # that give a GiB of logits
    assert of(model=large) == 6 * E * 2**20 + 4 * N * E + 6 * rows * 2**20


def test_an_engine_by_hand(config: RunConfig) -> None:
    assert memory_estimates.num_parameters(config.model) == 324_352
    assert memory_estimates.weight_bytes(config.model, "bfloat16") == 2 * 324_352
    assert (
        memory_estimates.pages_per_slot(config.engine, config.slot_tokens) == 13
    )  # of 16, for 208 tokens
    assert memory_estimates.most_pages(config.engine, config.slot_tokens) == 64 * 13
    set_by_hand = dataclasses.replace(config.engine, num_pages=40)
    assert memory_estimates.most_pages(set_by_hand, config.slot_tokens) == 40
    # 16 tokens; 2 layers of 2 heads of 32 floats, twice (K and V)
    assert memory_estimates.page_bytes(config.model, config.engine) == 16 * 2 * 2 * 32 * 4 * 2
    half = dataclasses.replace(config.engine, kv_dtype="bfloat16")
    assert memory_estimates.page_bytes(config.model, half) == 16 * 2 * 2 * 32 * 2 * 2


def test_a_learner_by_hand(config: RunConfig) -> None:
    parts = {
        "parameters": 4 * 324_352,
        "gradients": 4 * 4 * 324_352,  # of 4 micro-batches; see below
        "optimizer": 8 * 324_352,
    }
    assert memory_estimates.learner_bytes(config) == parts
    algorithm = dataclasses.replace(config.algorithm, kl_coefficient=0.1)
    with_kl = dataclasses.replace(config, algorithm=algorithm)
    assert memory_estimates.learner_bytes(with_kl) == {**parts, "reference": 4 * 324_352}
    lagging = dataclasses.replace(
        config,
        algorithm=dataclasses.replace(config.algorithm, lag=2),
        weights=dataclasses.replace(config.weights, rollout_dtype="bfloat16"),
    )
    assert memory_estimates.learner_bytes(lagging) == {**parts, "older version": 2 * 324_352}

    half = dataclasses.replace(config.learner, moment_dtype="bfloat16")
    rounded = dataclasses.replace(config, learner=half)
    assert memory_estimates.learner_bytes(rounded)["optimizer"] == 4 * 324_352
    elsewhere = dataclasses.replace(config, learner=dataclasses.replace(half, moment_memory="host"))
    assert "optimizer" not in memory_estimates.learner_bytes(elsewhere)
    assert memory_estimates.moment_bytes(elsewhere) == 4 * 324_352
    assert "on the host: optimizer 1.2 MiB" in plan_text(elsewhere)
    learner = dataclasses.replace(config.learner, mesh=(2, 3, 2), pack_rows=6)
    sharded = dataclasses.replace(config, learner=learner)
    assert memory_estimates.learner_bytes_per_device(config) == 28 * 324_352
    assert memory_estimates.learner_bytes_per_device(sharded) == -(-28 * 324_352 // 6)


def test_a_learner_of_adapters_by_hand(config: RunConfig) -> None:
    """Rank 4 on 2 layers: q, o are 128 x 128, k, v are 128 x 64, and the MLP's 128 x 256."""
    lora = LoraConfig(rank=4)
    model = dataclasses.replace(config.model, lora=lora, dtype="bfloat16")
    adapted = dataclasses.replace(config, model=model)
    count = 4 * 2 * (2 * 256 + 2 * 192 + 3 * 384)
    assert (
        memory_estimates.num_trained_parameters(model)
        == memory_estimates.num_adapter_parameters(model)
        == count
    )
    assert (
        memory_estimates.num_trained_parameters(config.model)
        == memory_estimates.num_parameters(model)
        == 324_352
    )
    parts = {
        "base": 2 * 324_352,
        "parameters": 4 * count,
        "gradients": 4 * 4 * count,
        "optimizer": 8 * count,
    }
    assert memory_estimates.learner_bytes(adapted) == parts
    algorithm = dataclasses.replace(config.algorithm, kl_coefficient=0.1, advantage="gae")
    with_both = memory_estimates.learner_bytes(dataclasses.replace(adapted, algorithm=algorithm))
    assert with_both["reference"] == 4 * count  # adapters that add nothing
    assert with_both["critic"] > 4 * (3 + 4) * 0.9 * 324_352  # trained whole
    assert "adapters    rank 4, alpha 32, on q_proj" in plan_text(adapted)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5, 8, 13])
def test_counts_the_gradients_that_a_sum_keeps(config: RunConfig, num_parts: int) -> None:
    """Beside those of the micro-batch under way: its sum so far, and the newest part of it."""
    total, most = TreeSum(num_parts, lambda left, right: left + right), 0
    for index in range(num_parts):
        most = max(most, len(total._partial) + 2)
        total.add(index, 1)
    learner = dataclasses.replace(config.learner, prompts_per_step=6 * num_parts)
    parts: dict[str, Any] = memory_estimates.learner_bytes(
        dataclasses.replace(config, learner=learner)
    )
    assert most <= parts["gradients"] // parts["parameters"] <= most + 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**30 - 1, "1024.0 MiB"),
        (2**41, "2048.0 GiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert memory_estimates.size_text(count) == text
