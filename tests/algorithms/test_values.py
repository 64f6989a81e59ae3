import jax
import jax.numpy as jnp
import numpy as np

from rlboost_jax.algorithms.values import value_losses

VALUES = jnp.array([0.0, 0.5, 1.0, 1.5, 9.0])
OLD, RETURNS = jnp.full(5, 0.5), jnp.full(5, 1.0)
MASK = jnp.array([True, True, True, True, False])


def test_half_the_squared_error():
    losses = value_losses(VALUES, OLD, RETURNS, MASK, value_clip=0.0)
    np.testing.assert_allclose(losses, [0.5, 0.125, 0, 0.125, 0])


def test_the_trap_of_value_clipping_the_greater_error_counts():
    """Within 0.2 of the old value: 0.3, 0.5, 0.7, 0.7. What went the wrong way keeps its pull
    back; what went far enough the right way has none."""
    losses = value_losses(VALUES, OLD, RETURNS, MASK, value_clip=0.2)
    np.testing.assert_allclose(losses, [0.5, 0.125, 0.045, 0.125, 0], rtol=1e-6)

    def total(values):
        return value_losses(values, OLD, RETURNS, MASK, value_clip=0.2).sum()

    slopes = jax.grad(total)(VALUES)
    np.testing.assert_allclose(slopes, [-1.0, -0.5, 0.0, 0.5, 0.0], rtol=1e-6)
