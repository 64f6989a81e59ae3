"""The noise of a sampled token: one uniform number that depends on its name, not on its time.

    u = uniform(fold_in(fold_in(fold_in(key(seed), step), sample), position))

It depends on these four numbers and on nothing else, so where and when a token is sampled cannot
matter. (Gumbel noise needs a number per vocabulary entry, three to seven times as much work.)
"""

import jax
import jax.numpy as jnp
from jax import Array


def noise_keys(
    seed: Array,  # u32[T]
    step: Array,  # u32[T]
    sample: Array,  # u32[T]
) -> Array:  # key[T]
    """The key of each response: what does not change from token to token."""
    words_T2 = jnp.stack([jnp.zeros_like(seed), seed], axis=-1)
    keys = jax.random.wrap_key_data(words_T2, impl="threefry2x32")  # is jax.random.key(seed)
    fold_in = jax.vmap(jax.random.fold_in)
    return fold_in(fold_in(keys, step), sample)


def uniforms(
    keys: Array,  # key[T]
    position: Array,  # i32[T]
) -> Array:  # f32[T]
    """One number per row, at least 2^-24 and at most 1 - 2^-24, from the response position.

    The folded key is itself a block of the counter-based generator, so its bits are the noise.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Threefry).
    """
    words_T2 = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, position))
    return ((words_T2[:, 0] >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
