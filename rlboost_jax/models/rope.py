"""Rotary positions from tables computed on the host in float64.

A table's bits depend on nothing but the position, where `cos` inside a program may be
compiled one way in one program and another way in the next. One table of every position
would be a constant of megabytes in each program, so that there are two, of fine and coarse
positions, joined by the angle sum. Below `FINE` the coarse rotation is the identity and
the table's bits come through untouched.
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from rlboost_jax.sequences.shared_limits import MAX_POSITIONS
from rlboost_jax.settings.model_config import ModelConfig

FINE = 1024  # positions in the fine table
COARSE = MAX_POSITIONS // FINE  # multiples of FINE in the coarse table


class Rope(NamedTuple):
    """Parameters of rotary frequencies: the fields of `ModelConfig` that begin with rope_."""

    theta: float
    scaling: str = ""
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    attention_factor: float = 1.0


def ropes(config: ModelConfig) -> tuple[Rope, Rope]:
    """Parameters for layers with full attention, and for layers with a window."""
    everywhere = Rope(
        theta=config.rope_theta,
        scaling=config.rope_scaling,
        factor=config.rope_factor,
        low_frequency_factor=config.rope_low_frequency_factor,
        high_frequency_factor=config.rope_high_frequency_factor,
        original_positions=config.rope_original_positions,
        attention_factor=config.rope_attention_factor,
    )
    return everywhere, Rope(config.local_rope_theta) if config.local_rope_theta else everywhere


def frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Radians per position of each pair, [head_dim / 2].

    Sources: Su et al. 2021, arXiv:2104.09864, section 3.2.2; "linear" is Chen et al. 2023,
    arXiv:2306.15595, equation 4; "llama3" as in Meta's release of Llama 3.1, and "yarn" is Peng et
    al. 2023, arXiv:2309.00071, section 3.2: low frequencies are divided by the factor, high ones
    are not, and those in between are interpolated, over turns the one and over pairs the other.
    """
    plain = rope.theta ** (-np.arange(head_dim // 2, dtype=np.float64) * 2 / head_dim)
    if rope.scaling == "linear":
        return np.asarray(plain / rope.factor)
    if rope.scaling == "llama3":
        low, high = rope.low_frequency_factor, rope.high_frequency_factor
        turns = rope.original_positions * plain / (2 * np.pi)  # within the original context
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return np.asarray(kept * plain + (1 - kept) * plain / rope.factor)
    if rope.scaling == "yarn":
        kept = _kept_by_yarn(rope, head_dim)
        return np.asarray(kept * plain + (1 - kept) * plain / rope.factor)
    return np.asarray(plain)


def _kept_by_yarn(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Share of each pair's own frequency, [head_dim / 2]; bounds are whole pairs."""

    def pair(turns: float) -> float:
        """Index of the pair that makes `turns` turns within the original context."""
        longest = rope.original_positions / (2 * math.pi * turns)
        return head_dim / 2 * math.log(longest) / math.log(rope.theta)

    first = max(math.floor(pair(rope.high_frequency_factor)), 0)
    last = min(math.ceil(pair(rope.low_frequency_factor)), head_dim - 1)
    width = last - first or 0.001  # a step where both are the same pair
    return 1 - np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)


def cos_sin(
    positions: Int[Array, " N"], head_dim: int, rope: Rope
) -> tuple[Float[Array, "N half"], Float[Array, "N half"]]:
    """Cosine and sine of position · frequency for every pair, times the attention factor.

    Args:
        positions: absolute, in [0, MAX_POSITIONS).
    """
    fine_cos, fine_sin = (table[positions % FINE] for table in _tables(head_dim, rope, 1, FINE))
    coarse_cos, coarse_sin = (
        table[positions // FINE] for table in _tables(head_dim, rope, FINE, COARSE)
    )
    return (
        fine_cos * coarse_cos - fine_sin * coarse_sin,
        fine_sin * coarse_cos + fine_cos * coarse_sin,
    )


def turn(
    x: Float[Array, "N H D"], cos: Float[Array, "N half"], sin: Float[Array, "N half"]
) -> Float[Array, "N H D"]:
    """Rotate the pair (i, i + D/2) of every head, in float32.

    Source: Su et al. 2021, arXiv:2104.09864, equation 34, with the halves of a head paired
    as in GPT-NeoX, Llama and Qwen.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _tables(head_dim: int, rope: Rope, stride: int, count: int) -> tuple[Array, Array]:
    cos, sin = _host_tables(head_dim, rope, stride, count)
    return jnp.asarray(cos), jnp.asarray(sin)


@functools.lru_cache
def _host_tables(
    head_dim: int, rope: Rope, stride: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    angles = np.arange(count, dtype=np.float64)[:, None] * stride * frequencies(rope, head_dim)
    factor = rope.attention_factor if stride == 1 else 1.0  # once in a product of two tables
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    return cos.astype(np.float32), sin.astype(np.float32)
