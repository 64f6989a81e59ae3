"""Gradients of products with matrices against float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from rlboost_jax.models.products import linear
from rlboost_jax.settings.config_loading import run_config


@pytest.mark.parametrize("split_rows", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_where_rows_are_split_the_gradient_of_a_matrix_is_not_rounded(
    split_rows: bool, bias: bool
) -> None:
    """So that what devices add up, of their rows each, are float32 numbers."""
    model = replace(run_config(base.get_config()).model, dtype="bfloat16")
    product = linear(
        model, 24, 40, rngs=nnx.Rngs(0), by_row=False, bias=bias, split_rows=split_rows
    )
    rng = np.random.default_rng(0)
    x, g = (jnp.asarray(rng.normal(size=(64, width)), "bfloat16") for width in (24, 40))
    graph, params = nnx.split(product)

    def total(params: nnx.State, x: jax.Array) -> jax.Array:
        y = nnx.merge(graph, params)(x)
        assert y.dtype == jnp.bfloat16
        return (y.astype(jnp.float32) * g.astype(jnp.float32)).sum()

    gradients, by_x = jax.jit(jax.grad(total, argnums=(0, 1)))(params, x)
    x64, g64 = np.float64(x), np.float64(g)
    matrix = np.float64(product.kernel[...].astype(jnp.bfloat16))
    np.testing.assert_allclose(np.float64(by_x), g64 @ matrix.T, rtol=1e-2, atol=1e-2)
    error = np.abs(np.float64(gradients["kernel"][...]) - x64.T @ g64).max()
    assert gradients["kernel"][...].dtype == jnp.float32
    assert error < 2e-5 if split_rows else error > 1e-3
