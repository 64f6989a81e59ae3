"""What the `config.json` of each checkpoint says that a file of `configs/` begins with."""

import importlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig

_QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": 151936, "rope_theta": 1e6}
_QWEN3 = _QWEN | {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": False}


def _sizes(width: int, layers: int, heads: int, keys: int, hidden: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": hidden,
    }


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "qwen25_05b_gsm8k": _QWEN
    | {"model_type": "qwen2", "tie_word_embeddings": True}
    | _sizes(896, 24, 14, 2, 4864),
    "qwen3_06b_gsm8k": _QWEN3 | {"tie_word_embeddings": True} | _sizes(1024, 28, 16, 8, 3072),
    "llama32_1b_lora": {
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": 128256,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "head_dim": 64,
    }
    | _sizes(2048, 16, 32, 8, 8192),
    "qwen3_8b_openr1": _QWEN3 | _sizes(4096, 36, 32, 8, 12288),
    "qwen3_14b_openr1": _QWEN3 | _sizes(5120, 40, 40, 8, 17408),
    "qwen3_32b_openr1": _QWEN3 | _sizes(5120, 64, 64, 8, 25600),
    "qwen3_30b_a3b_moe": _QWEN3
    | {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    }
    | _sizes(2048, 48, 32, 4, 6144),
}


def run_of(name: str, mesh: tuple[int, ...] = (), dtype: str = "", layers: int = 0) -> RunConfig:
    """The run that `configs/<name>.py` describes.

    Args:
        mesh: in place of its own.
        dtype: of weights, activations, keys and values, in place of its own.
        layers: of the model, in place of the checkpoint's; 0: all.
    """
    checkpoint = CHECKPOINTS[name]
    if layers:
        checkpoint = checkpoint | {"num_hidden_layers": layers}
    config = importlib.import_module(f"configs.{name}").get_config()
    if mesh:
        config.learner.mesh = mesh
    if dtype:
        config.model.dtype = config.engine.kv_dtype = config.weights.rollout_dtype = dtype
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(checkpoint))
        config.model.source = config.data.tokenizer = folder
        return run_config(config)


def with_moments_on_device(run: RunConfig) -> RunConfig:
    """The run as it is compiled: without a device there is no page-locked memory of its host."""
    return replace(run, learner=replace(run.learner, moment_memory="device"))
