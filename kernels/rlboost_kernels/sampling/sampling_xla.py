"""Sampling by sums over a tree of fixed shape, with a searched top-k and top-p, on any platform.

The token is the one at which the cumulative weights pass the noise times their total or, with noise
for every level of the tree, the one to which the choices of its nodes lead.
"""

from collections.abc import Callable, Sequence
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.sampling import sum_tree
from rlboost_kernels.sampling.sum_tree import FANOUT
from rlboost_kernels.sharding import differ_like

# Entries from which the same is written so that XLA on CPU makes one array of the logits' size
# instead of three, for 2.7 times the speed. The two ways round alike but for a last bit.
_LARGE: Final = 8192


def draw(
    logits: Array,  # f32[T, V]
    noise: Array,  # f32[T] or f32[T, levels, 16]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    truncated: bool,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """Draw a token per row, and its log-probability; see `sampling_api.tokens_from_noise`."""
    large = logits.shape[1] >= _LARGE
    best_T1 = logits.max(axis=-1, keepdims=True)
    if large:
        best_T1 = jax.lax.optimization_barrier(best_T1)
    greedy_T1 = temperature[:, None] < jnp.finfo(jnp.float32).tiny  # its inverse may be infinite
    divisor_T1 = jnp.where(greedy_T1, 1.0, temperature[:, None])
    # Centred before it is divided: a tiny temperature then gives -inf at worst, never NaN.
    scaled = (logits - best_T1) / divisor_T1
    keep = ~greedy_T1 | (logits == best_T1)
    if truncated:
        keep &= _likeliest(scaled, top_p, top_k)
    if large:
        weights = jnp.exp(jnp.where(keep, scaled, -jnp.inf))
    else:
        weights = jnp.where(keep, jnp.exp(scaled), 0.0)

    greedy = greedy_T1[:, 0]
    levels, total = sum_tree.sums(weights)
    if noise.ndim == 1:
        # The first entry of positive weight is what noise 0 yields: the first largest, if greedy.
        tokens = _pass_threshold(levels, jnp.where(greedy, 0.0, noise) * total)
    else:
        tokens = _race(levels, noise, greedy)
    tokens = jnp.minimum(tokens, logits.shape[1] - 1)
    chosen_T1 = jnp.take_along_axis(logits if large else scaled, tokens[:, None], axis=1)
    if large:
        chosen_T1 = (chosen_T1 - best_T1) / divisor_T1
    # No entry is the largest where none is a number: that must show in greedy rows, too.
    certain = jnp.where(total > 0, 0.0, jnp.nan)
    return tokens, jnp.where(greedy, certain, chosen_T1[:, 0] - jnp.log(total))


def kept(
    logits: Array,  # f32[T, V]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
) -> Array:  # bool[T, V]
    """Mark the entries that `draw` may yield; see `sampling_api.kept_entries`."""
    best_T1 = logits.max(axis=-1, keepdims=True)
    return _likeliest((logits - best_T1) / temperature[:, None], top_p, top_k)


def _likeliest(
    scaled: Array,  # f32[T, V]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
) -> Array:  # bool[T, V]
    """Mark the entries that top-k and then top-p leave; at least the likeliest."""
    # No entry is above 0, so the bits of its magnitude rank it: 0 is the likeliest.
    ranks = jax.lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)
    count = jnp.where(top_k > 0, top_k.astype(jnp.float32), jnp.inf)
    kept = _shortest_head(ranks, jnp.ones_like(scaled), count)
    weights = jnp.where(kept, jnp.exp(scaled), 0.0)
    mass = jnp.maximum(top_p * weights.sum(axis=-1), jnp.finfo(jnp.float32).tiny)
    mass = jnp.where(top_p < 1, mass, jnp.inf)
    return kept & _shortest_head(ranks, weights, mass)


def _shortest_head(
    ranks: Array,  # i32[T, V]
    weights: Array,  # f32[T, V]
    need: Array,  # f32[T]
) -> Array:  # bool[T, V]
    """Mark the fewest entries, by rank and then by id, whose weights add up to `need`.

    An entry is in if the weights before it fall short. Searched bit by bit, which passes over
    the vocabulary some thirty times, and twenty more where the bound falls on equal logits; a
    sort takes ten times as long.
    """
    T, V = ranks.shape
    ids = jnp.arange(V, dtype=jnp.int32)[None, :]
    sought = ~jnp.isinf(need).all()

    def last_short(num_bits: int, before: Callable[[Array], Array], sought: Array) -> Array:
        """Find the largest bound at which the weights of entries before it fall short."""

        def refine(i: Array, bound_T1: Array) -> Array:
            higher_T1 = bound_T1 | (1 << (num_bits - 1 - i))
            held = jnp.where(before(higher_T1), weights, 0.0).sum(axis=-1)
            return jnp.where((held < need)[:, None], higher_T1, bound_T1)

        steps = jnp.where(sought, num_bits, 0)
        start = differ_like(jnp.zeros((T, 1), jnp.int32), ranks, weights, need)
        return jax.lax.fori_loop(0, steps, refine, start)

    rank_T1 = last_short(31, lambda bound: ranks < bound, sought)
    ties = ((ranks == rank_T1) & (weights > 0)).sum(axis=-1) > 1
    last_T1 = last_short(
        V.bit_length(),
        lambda bound: (ranks < rank_T1) | ((ranks == rank_T1) & (ids < bound)),
        sought & (ties & ~jnp.isinf(need)).any(),
    )
    last_T1 = jnp.where(ties[:, None], last_T1, V)
    head = (ranks < rank_T1) | ((ranks == rank_T1) & (ids <= last_T1))
    return head | jnp.isinf(need)[:, None]


def _pass_threshold(
    levels: Sequence[Array],  # f32[T, nodes, 16]
    threshold: Array,  # f32[T]
) -> Array:  # i32[T]
    """Find the entry at which cumulative weights pass the threshold.

    Rounding may leave all children short of what is sought, and then it is the last of positive
    weight; or lift a running sum at a child of weight 0, which is passed over.
    """
    index = jnp.zeros(len(threshold), jnp.int32)
    for level in reversed(levels):
        children = jnp.take_along_axis(level, index[:, None, None], axis=1)[:, 0]
        running = jnp.where(jnp.tri(FANOUT, dtype=bool)[None], children[:, None, :], 0.0).sum(-1)
        passed = (running > threshold[:, None]) & (children > 0)
        last = FANOUT - 1 - jnp.argmax((children > 0)[:, ::-1], axis=1)
        child = jnp.where(passed.any(1), jnp.argmax(passed, axis=1), last)
        before = jnp.where(jnp.arange(FANOUT)[None] == child[:, None] - 1, running, 0.0).sum(-1)
        index, threshold = index * FANOUT + child.astype(jnp.int32), threshold - before
    return index


def _race(
    levels: Sequence[Array],  # f32[T, nodes, 16]
    noise: Array,  # f32[T, levels, 16]
    greedy: Array,  # bool[T]
) -> Array:  # i32[T]
    """Go down the tree to the child with the largest sum for its number; if greedy, to the first.

    A child's time in a race, its number by its sum, is exponential with the sum as its rate: the
    earliest is child c with the probability that c has among its siblings. Numbers of two levels
    are independent, so one set of them serves whichever node is reached.
    Source: Maddison et al. 2014, arXiv:1411.0030 (Gumbel-max), as a race of exponentials.
    """
    index = jnp.zeros(len(greedy), jnp.int32)
    for level, numbers in reversed(list(zip(levels, noise.swapaxes(0, 1), strict=True))):
        children = jnp.take_along_axis(level, index[:, None, None], axis=1)[:, 0]
        rates = children / numbers
        # Where all rates underflow, as where the first is wanted, it is the first of them.
        first = greedy | ~(rates.max(axis=1) > 0)
        child = jnp.argmax(jnp.where(first[:, None], children > 0, rates), axis=1)
        index = index * FANOUT + child.astype(jnp.int32)
    return index
