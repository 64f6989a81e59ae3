"""A small model and settings of an engine for it, to be changed where a test needs another."""

from dataclasses import replace
from typing import Any

from configs import base
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig

ENGINE = EngineConfig(
    slots=6,
    page_size=4,
    num_pages=0,
    memory_fraction=0.9,
    max_prompt_tokens=20,
    token_rows=64,
    steps_per_dispatch=4,
    attention="auto",
    kv_dtype="float32",
    tensor_parallel=1,
)


def small_model(**changes: Any) -> ModelConfig:
    """Untied, with norms of queries and keys, in float32."""
    small = replace(
        run_config(base.get_config()).model,
        vocab_size=24,
        embed_dim=16,
        num_layers=2,
        num_query_heads=4,
        num_key_heads=2,
        head_dim=8,
        hidden_dim=32,
        rope_theta=10_000.0,
        norm_epsilon=1e-6,
        tie_embeddings=False,
        qk_norm=True,
        dtype="float32",
    )
    return replace(small, **changes)
