from dataclasses import replace

import pytest

from configs import base
from rlboost_jax.config.load import run_config


@pytest.fixture
def small_model():
    """A factory of small model configurations: `small_model(num_layers=5)`."""

    def build(**changes):
        config = replace(
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
        return replace(config, **changes)

    return build
