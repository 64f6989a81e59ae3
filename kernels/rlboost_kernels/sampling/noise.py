"""The noise of a sampled token: numbers that depend on its name, not on its time.

    key = fold_in(fold_in(fold_in(key(seed), step), sample), position)

It depends on these four numbers and on nothing else, so where and when a token is sampled cannot
matter. Two kinds of noise choose a token of the same distribution:

- "inverse_cdf": one uniform number, at which the cumulative distribution over ids is inverted.
- "tree": 16 exponential numbers for each level of a tree of sums (`sum_tree.py`): the child with
  the largest sum for its number is the next node. Two distributions that differ little then seldom
  choose different tokens: at most about twice as often as their total variation, which no noise
  that knows only one of them can better (Bavarian et al. 2016, arXiv:1612.01041). Where a
  distribution is inverted it is several times that, since a small change moves all edges.

(Gumbel noise for every entry does as well, for three to thirteen times as much work.)
"""

from typing import Literal, TypeAlias, assert_never, get_args

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.sampling.sum_tree import FANOUT, num_levels

NoiseKind: TypeAlias = Literal["inverse_cdf", "tree"]


def noise_keys(
    seed: Array,  # u32[T]
    step: Array,  # u32[T]
    sample: Array,  # u32[T]
) -> Array:  # key[T]
    """Make each response's key, which does not change from token to token."""
    words_T2 = jnp.stack([jnp.zeros_like(seed), seed], axis=-1)
    keys = jax.random.wrap_key_data(words_T2, impl="threefry2x32")  # is jax.random.key(seed)
    fold_in = jax.vmap(jax.random.fold_in)
    return fold_in(fold_in(keys, step), sample)


def token_noise(
    keys: Array,  # key[T]
    position: Array,  # i32[T]
    kind: NoiseKind,
    *,
    vocabulary: int,
) -> Array:  # f32[T] or f32[T, levels, 16]
    """Make the noise of each row's token, by response position; see the module."""
    match kind:
        case "inverse_cdf":
            return uniforms(keys, position)
        case "tree":
            return exponentials(keys, position, vocabulary=vocabulary)
        case _:
            assert_never(kind)


def check_kind(kind: str) -> None:
    """Raise ValueError if no noise is of this kind."""
    if kind not in get_args(NoiseKind):
        raise ValueError(f"noise is {kind!r}; it must be one of {', '.join(get_args(NoiseKind))}")


def uniforms(
    keys: Array,  # key[T]
    position: Array,  # i32[T]
) -> Array:  # f32[T]
    """Draw one number per row, at least 2^-24 and at most 1 - 2^-24, by response position.

    The folded key is itself a block of the counter-based generator, so its bits are the noise.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Threefry).
    """
    words_T2 = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, position))
    return ((words_T2[:, 0] >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def exponentials(
    keys: Array,  # key[T]
    position: Array,  # i32[T]
    *,
    vocabulary: int,
) -> Array:  # f32[T, levels, 16]
    """Draw numbers of the exponential distribution of mean 1, at least 2^-33, by response position.

    Those of level l and children 2 j and 2 j + 1 are the words of fold_in(key, 8 l + j). An entry
    of probability p is the first of a race with a number below about p: the smallest have to be
    fine, so all 32 bits are used.
    """
    levels = num_levels(vocabulary)
    blocks = jnp.arange(levels * FANOUT // 2, dtype=jnp.uint32)
    folded = jax.vmap(jax.random.fold_in)(keys, position)
    words = jax.random.key_data(
        jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(folded, blocks)
    )
    u = words.reshape(len(keys), levels, FANOUT).astype(jnp.float32) * 2.0**-32 + 2.0**-33
    return -jnp.log1p(-jnp.minimum(u, 1 - 2.0**-24))
