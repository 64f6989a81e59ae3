"""From logits to a token and the log-probability it was drawn with.

The noise of a token is one uniform number that depends on (seed, step, sample, position in the
response) and on nothing else, so where and when a token is sampled cannot matter:

    u = uniform(fold_in(fold_in(fold_in(key(seed), step), sample), position))

The token is the one at which the cumulative weights pass u times their total. Sums are taken
over a tree of fixed shape, so that the order of additions is the same everywhere. (Gumbel noise
needs a number per vocabulary entry, which costs seven times as much at 32k entries.)
"""

import math
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from rlboost_jax.engine.metadata import Controls

_FANOUT: Final = 16  # children of a node of the tree of sums


def noise_keys(controls: Controls) -> Key[Array, " T"]:
    """The key of each response: what does not change from token to token."""
    words = jnp.stack([jnp.zeros_like(controls.seed), controls.seed], axis=-1)
    keys = jax.random.wrap_key_data(words, impl="threefry2x32")  # is jax.random.key(seed)
    fold_in = jax.vmap(jax.random.fold_in)
    return fold_in(fold_in(keys, controls.step), controls.sample)


def uniforms(keys: Key[Array, " T"], positions: Int[Array, " T"]) -> Float[Array, " T"]:
    """One number per row, at least 2^-24 and at most 1 - 2^-24, from the response position.

    The folded key is itself a block of the counter-based generator, so its bits are the noise.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Threefry).
    """
    words: UInt[Array, "T 2"] = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, positions))
    return ((words[:, 0] >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def sample(
    logits: Float[Array, "T V"], noise: Float[Array, " T"], controls: Controls, *, truncated: bool
) -> tuple[Int[Array, " T"], Float[Array, " T"]]:
    """A token per row, and its log-probability in nats under the distribution sampled from.

    That distribution is softmax(logits / temperature), cut to the `top_k` likeliest entries
    and then to the fewest likeliest ones that hold `top_p` of the rest, renormalised. Equal
    logits are ranked by id. Temperature 0 is all mass on the first largest logit: log-prob 0.

    Never returns an entry of probability 0 or an id outside the vocabulary, whatever the noise.

    Args:
        noise: inside (0, 1).
        truncated: False leaves the sort out of the program; `top_k` and `top_p` are ignored.
    """
    V = logits.shape[1]
    ids = jnp.arange(V)[None, :]
    best = logits.max(axis=-1, keepdims=True)
    greedy = (controls.temperature <= 0)[:, None]
    # Centred before it is divided: a tiny temperature then gives -inf at worst, never NaN.
    scaled = (logits - best) / jnp.where(greedy, 1.0, controls.temperature[:, None])
    keep = ~greedy | (ids == jnp.argmax(logits, axis=-1)[:, None])
    if truncated:
        keep &= _likeliest(scaled, controls.top_p, controls.top_k)
    weights = jnp.where(keep, jnp.exp(scaled), 0.0)

    tokens, total = _pass_threshold(weights, noise)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    return tokens, chosen - jnp.log(total)


def _likeliest(
    scaled: Float[Array, "T V"], top_p: Float[Array, " T"], top_k: Int[Array, " T"]
) -> Bool[Array, "T V"]:
    """Which entries top-k and then top-p leave; at least the likeliest.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, arXiv:1904.09751
    (nucleus).
    """
    # No entry is above 0, so the bits of its magnitude rank it: 0 is the likeliest.
    ranks = jax.lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)
    count = jnp.where(top_k > 0, top_k.astype(jnp.float32), jnp.inf)
    kept = _shortest_head(ranks, jnp.ones_like(scaled), count)
    weights = jnp.where(kept, jnp.exp(scaled), 0.0)
    mass = jnp.where(top_p < 1, top_p * weights.sum(axis=-1), jnp.inf)
    return kept & _shortest_head(ranks, weights, mass)


def _shortest_head(
    ranks: Int[Array, "T V"], weights: Float[Array, "T V"], need: Float[Array, " T"]
) -> Bool[Array, "T V"]:
    """The fewest entries, by rank and then by id, whose weights add up to `need`.

    An entry is in if the weights before it fall short. Searched bit by bit, which passes over
    the vocabulary some fifty times and still takes a tenth of the time of a sort.
    """
    ids = jnp.arange(ranks.shape[1], dtype=jnp.int32)[None, :]

    def last_short(num_bits: int, before: Callable[[Array], Array]) -> Int[Array, "T 1"]:
        """The largest bound for which the weights of the entries `before` it fall short."""

        def refine(i: Array, bound: Array) -> Array:
            higher = bound | (1 << (num_bits - 1 - i))
            held = jnp.where(before(higher), weights, 0.0).sum(axis=-1)
            return jnp.where((held < need)[:, None], higher, bound)

        steps = jnp.where(jnp.isinf(need).all(), 0, num_bits)  # nothing to search for
        return jax.lax.fori_loop(0, steps, refine, jnp.zeros((len(ranks), 1), jnp.int32))

    rank = last_short(31, lambda bound: ranks < bound)
    last = last_short(
        ranks.shape[1].bit_length(),
        lambda bound: (ranks < rank) | ((ranks == rank) & (ids < bound)),
    )
    head = (ranks < rank) | ((ranks == rank) & (ids <= last))
    return head | jnp.isinf(need)[:, None]


def _pass_threshold(
    weights: Float[Array, "T V"], noise: Float[Array, " T"]
) -> tuple[Int[Array, " T"], Float[Array, " T"]]:
    """The entry at which the cumulative weights pass `noise` times their total, and the total.

    Goes down a tree whose nodes hold the sums of their children, so that every sum is short and
    always of the same terms in the same order. Rounding may leave all children short of what is
    sought, and then it is the last of positive weight; or lift a running sum at a child of
    weight 0, which is passed over.
    """
    T, V = weights.shape
    levels = [weights]
    while levels[-1].shape[1] > 1:
        n = math.ceil(levels[-1].shape[1] / _FANOUT)
        padded = jnp.pad(levels[-1], ((0, 0), (0, n * _FANOUT - levels[-1].shape[1])))
        levels[-1] = padded.reshape(T, n, _FANOUT)
        levels.append(levels[-1].sum(-1))
    total = levels.pop()[:, 0]

    index, threshold = jnp.zeros(T, jnp.int32), noise * total
    for level in reversed(levels):
        children = jnp.take_along_axis(level, index[:, None, None], axis=1)[:, 0]
        running = jnp.where(jnp.tri(_FANOUT, dtype=bool)[None], children[:, None, :], 0.0).sum(-1)
        passed = (running > threshold[:, None]) & (children > 0)
        last = _FANOUT - 1 - jnp.argmax((children > 0)[:, ::-1], axis=1)
        child = jnp.where(passed.any(1), jnp.argmax(passed, axis=1), last)
        before = jnp.where(jnp.arange(_FANOUT)[None] == child[:, None] - 1, running, 0.0).sum(-1)
        index, threshold = index * _FANOUT + child.astype(jnp.int32), threshold - before
    return jnp.minimum(index, V - 1), total
