"""Rotary positions from tables computed on the host in float64.

A table's bits depend on nothing but the position, where `cos` inside a program may be
compiled one way in one program and another way in the next. One table of every position
would be a constant of megabytes in each program, so that there are two, of fine and coarse
positions, joined by the angle sum. Below `FINE` the coarse rotation is the identity and
the table's bits come through untouched.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from rlboost_jax.config.ranges import MAX_POSITIONS

FINE = 1024  # positions in the fine table
COARSE = MAX_POSITIONS // FINE  # multiples of FINE in the coarse table


def rotate(
    x: Float[Array, "N H D"], positions: Int[Array, " N"], *, theta: float
) -> Float[Array, "N H D"]:
    """Turn the pair (i, i + D/2) of every head by position · theta^(-2i/D), in float32.

    Args:
        positions: absolute, in [0, MAX_POSITIONS).

    Source: Su et al. 2021, arXiv:2104.09864, equation 34, with the halves of a head paired
    as in GPT-NeoX, Llama and Qwen.
    """
    cos, sin = _cos_sin(positions, x.shape[-1], theta)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _cos_sin(
    positions: Int[Array, " N"], head_dim: int, theta: float
) -> tuple[Float[Array, "N half"], Float[Array, "N half"]]:
    fine_cos, fine_sin = (table[positions % FINE] for table in _tables(head_dim, theta, 1, FINE))
    coarse_cos, coarse_sin = (
        table[positions // FINE] for table in _tables(head_dim, theta, FINE, COARSE)
    )
    return (
        fine_cos * coarse_cos - fine_sin * coarse_sin,
        fine_sin * coarse_cos + fine_cos * coarse_sin,
    )


def _tables(head_dim: int, theta: float, stride: int, count: int) -> tuple[Array, Array]:
    cos, sin = _host_tables(head_dim, theta, stride, count)
    return jnp.asarray(cos), jnp.asarray(sin)


@functools.lru_cache
def _host_tables(
    head_dim: int, theta: float, stride: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    frequencies = theta ** (-np.arange(head_dim // 2, dtype=np.float64) * 2 / head_dim)
    angles = np.arange(count, dtype=np.float64)[:, None] * stride * frequencies[None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
