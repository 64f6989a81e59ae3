"""The decoder against Hugging Face's Qwen3 with the same random weights, in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.forward import head, hidden_states
from rlboost_jax.models.params import flatten_params, init_params, unflatten_params

torch = pytest.importorskip("torch", reason="the Hugging Face oracle runs on torch")
pytest.importorskip("transformers", reason="it is the oracle")


def random_params(config):
    """Scales away from 1, which would hide a missing norm, and weights that give large logits."""
    rng = np.random.default_rng(0)
    params = flatten_params(init_params(config, 0))
    for name, leaf in params.items():
        scale = "norm" in name
        drawn = rng.uniform(0.5, 1.5, leaf.shape) if scale else 0.2 * rng.normal(size=leaf.shape)
        params[name] = jnp.asarray(drawn, leaf.dtype)
    return unflatten_params(params)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_hugging_face_qwen3(small_model, tied):
    from benchmarks.hugging_face import qwen3

    config = small_model(num_layers=3, rope_theta=1_000_000.0, tie_embeddings=tied)
    params = random_params(config)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(2, 40))
    with torch.no_grad():
        expected = qwen3(config, params)(torch.from_numpy(tokens)).logits.numpy()

    positions, segments = np.tile(np.arange(40), (2, 1)), np.ones((2, 40), np.int32)
    x = hidden_states(
        config, params, *map(jnp.asarray, (tokens, positions, segments)), remat="none"
    )
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(
        head(config, params, x).reshape(expected.shape), expected, atol=1e-5, rtol=1e-5
    )
