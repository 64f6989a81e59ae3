"""Sampling by sums over a tree of fixed shape, with a searched top-k and top-p, on any platform.

The token is the one at which the cumulative weights pass the noise times their total. Sums are
taken over a tree of fixed shape, so that the order of additions is the same everywhere.
"""

import math
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.sharding import differ_like

_FANOUT: Final = 16  # children of a node of the tree of sums
# Entries from which the same is written so that XLA on CPU makes one array of the logits' size
# instead of three, for 2.7 times the speed. The two ways round alike but for a last bit.
_LARGE: Final = 8192


def draw(
    logits: Array,  # f32[T, V]
    noise: Array,  # f32[T]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    truncated: bool,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """A token per row and its log-probability; see `api.tokens_from_noise`."""
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

    # The first entry of positive weight is what noise 0 yields: the first largest, if greedy.
    greedy = greedy_T1[:, 0]
    tokens, total = _pass_threshold(weights, jnp.where(greedy, 0.0, noise))
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
    """Which entries `draw` may yield; see `api.kept_entries`."""
    best_T1 = logits.max(axis=-1, keepdims=True)
    return _likeliest((logits - best_T1) / temperature[:, None], top_p, top_k)


def _likeliest(
    scaled: Array,  # f32[T, V]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
) -> Array:  # bool[T, V]
    """Which entries top-k and then top-p leave; at least the likeliest."""
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
    """The fewest entries, by rank and then by id, whose weights add up to `need`.

    An entry is in if the weights before it fall short. Searched bit by bit, which passes over
    the vocabulary some thirty times, and twenty more where the bound falls on equal logits; a
    sort takes ten times as long.
    """
    T, V = ranks.shape
    ids = jnp.arange(V, dtype=jnp.int32)[None, :]
    sought = ~jnp.isinf(need).all()

    def last_short(num_bits: int, before: Callable[[Array], Array], sought: Array) -> Array:
        """The largest bound for which the weights of the entries `before` it fall short."""

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
    weights: Array,  # f32[T, V]
    noise: Array,  # f32[T]
) -> tuple[Array, Array]:  # i32[T], f32[T]
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
