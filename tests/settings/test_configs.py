"""Every configuration in `configs/` is one: its plan is made from the architecture alone."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.learner.setup import fit
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.memory_estimates import (
    learner_bytes_per_device,
    num_adapter_parameters,
    num_parameters,
)

QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": 151936, "rope_theta": 1e6}


def sizes(
    width: int, layers: int, heads: int, keys: int, hidden: int, **more: Any
) -> dict[str, Any]:
    return {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "intermediate_size": hidden, **more,
    }  # fmt: skip


def qwen3(*numbers: int, tied: bool = False, kind: str = "qwen3", **more: Any) -> dict[str, Any]:
    own = {"model_type": kind, "head_dim": 128, "tie_word_embeddings": tied}
    return QWEN | own | sizes(*numbers, **more)


# Name → what its checkpoint's config.json says, and its parameters as its model card counts them.
CHECKPOINTS: dict[str, tuple[dict[str, Any], float]] = {
    "qwen25_05b_gsm8k": (
        QWEN | {"model_type": "qwen2", "tie_word_embeddings": True} | sizes(896, 24, 14, 2, 4864),
        0.49e9,
    ),
    "qwen3_06b_gsm8k": (qwen3(1024, 28, 16, 8, 3072, tied=True), 0.6e9),
    "llama32_1b_lora": (
        {
            "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "vocab_size": 128256, "rope_theta": 5e5, "tie_word_embeddings": True, "head_dim": 64,
        } | sizes(2048, 16, 32, 8, 8192),
        1.24e9,
    ),
    "qwen3_8b_openr1": (qwen3(4096, 36, 32, 8, 12288), 8.2e9),
    "qwen3_14b_openr1": (qwen3(5120, 40, 40, 8, 17408), 14.8e9),
    "qwen3_32b_openr1": (qwen3(5120, 64, 64, 8, 25600), 32.8e9),
    "qwen3_30b_a3b_moe": (
        qwen3(
            *(2048, 48, 32, 4, 6144), kind="qwen3_moe", moe_intermediate_size=768,
            num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
        ),
        30.5e9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_it_is_a_run_of_a_model_of_that_size_that_fits(name: str, tmp_path: Path) -> None:
    values, parameters = CHECKPOINTS[name]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = importlib.import_module(f"configs.{name}").get_config()
    assert config.model.source == config.data.tokenizer
    config.model.source = str(tmp_path)
    run = run_config(config)
    assert num_parameters(run.model) == pytest.approx(parameters, rel=0.02)
    assert plan_text(run)
    fit.check(run, fit.needs(run), int(run.learner.device_gb * 1e9))


def test_adapters_need_a_tenth_of_the_memory_and_a_fiftieth_of_the_network(tmp_path: Path) -> None:
    values, _ = CHECKPOINTS["llama32_1b_lora"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    plans = []
    for rank in (32, 0):
        config = importlib.import_module("configs.llama32_1b_lora").get_config()
        config.model.source, config.model.lora.rank = str(tmp_path), rank
        plans.append(run_config(config))
    adapters, everything = map(learner_bytes_per_device, plans)
    assert adapters < 0.1 * everything
    assert learner_bytes_per_device(plans[0]) < 3 * 2**30
    assert num_adapter_parameters(plans[0].model) == 22_544_384  # 32 x 16 x 44,032
    lines = plan_text(plans[0])
    assert "22,544,384 parameters (1.8 %) are trained" in lines
    assert "bfloat16 snapshots of 43.0 MiB, and once 2.3 GiB, pulled by auto" in lines
    assert "base 2.3 GiB + parameters 86.0 MiB" in lines
