"""The public function: validate, choose an implementation and the blocks, run it."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlboost_kernels.implementations import choose_plain
from rlboost_kernels.logprobs import logprobs_reference, logprobs_xla
from rlboost_kernels.logprobs.shards import Options, like, varying, vocabulary_size
from rlboost_kernels.sampling.noise import NoiseKind, check_kind

_PROGRAMS: dict[str, Callable[..., tuple[Array, Array, Array]]] = {
    "reference": logprobs_reference.select,
    "xla": logprobs_xla.select,
}
_FLOATS = ("float32", "bfloat16", "float16")

_BLOCK_LOGITS: Final = 1 << 24  # of a block, by default: 64 MiB, which CPUs like best
_FEWEST_ROWS: Final = 128  # of a block, by default; fewer would read the matrix too often
_FEWEST_OF_SOME: Final = 64  # likewise, where not all rows are looked at: the last block is in part
_ROWS_STEP: Final = 64  # on CPU, products of 64, 128, … rows give a row the same bits


def selected_logprobs(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V], or [V, E] if transposed
    tokens: Array,  # i32[N]
    *,
    where: Array | None = None,  # bool[N]
    transposed: bool = False,
    frozen: bool = False,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    axis_name: str | None = None,
    gather_axis: str | None = None,
    chunk: tuple[int, int] | None = None,
    block_logits: int = _BLOCK_LOGITS,
    products: str | None = "xla",
    implementation: str | None = None,
) -> tuple[Array, Array]:  # f32[N], f32[N]
    """Log-probabilities of given tokens and entropies, in nats, without the [N, V] logits.

    They are those of softmax(hidden @ unembedding / temperature), in float32. Both results have
    gradients to `hidden` and `unembedding`. No more logits than a block of `chunk` exist at a
    time, forwards or backwards: beyond arguments, results and float32 sums of both gradients,
    memory is about 2 and at most 4 float32 arrays of that size and a few copies of `hidden`.

    Under `jax.shard_map`, `unembedding` may hold this device's columns of a vocabulary split
    over the mesh axis `axis_name`, in order, and this device's rows of a width split over
    `gather_axis`, which are gathered once; tokens stay global, and results are whole. So are the
    gradients, which are summed over devices once, in float32. Rows and blocks are then the
    device's own. Under plain `jax.jit` split rows stay split, and blocks are those of all rows: a
    matrix that is split is gathered anew for each of them.

    For one `chunk` and N, the bits of a row do not depend on the other rows.

    Args:
        tokens: ids in [0, V). Others raise where values are known and are clipped where not.
        where: rows to compute, which are gathered first; results of the others are 0, and so are
            gradients to them. None: all.
        transposed: whether the matrix is [V, E], like a table of embeddings, which is read without
            a copy. It must be whole on one device.
        frozen: whether the matrix and entropies are constants. Logits are then made once for both
            values and gradients, where a block of `chunk` has whole rows.
        temperature: above 0.
        soft_cap: logits become soft_cap * tanh(logits / soft_cap) before the division.
        chunk: rows and vocabulary entries of a block. None takes whole rows, as many as give
            `block_logits` but at least 128, or 64 with `where`; with whole rows the arithmetic is
            the plain one.
        block_logits: 64 MiB by default. Each block reads the matrix and the sums of its gradient,
            so that GPUs want more: a GiB.
        products: implementation of `matmul` for the logits; None takes the best, whose rows keep
            their bits in any number. Any but "xla" is for arrays that are whole on one device.
        implementation: "reference" or "xla"; None or "auto" takes the best.

    Raises:
        ValueError: shapes, types, options or concrete tokens do not fit; or `unembedding` is not
            split over an axis that is named, as with `shard_map(…, check_vma=False)`.
        NotImplementedError: the named implementation cannot run here.
    """
    return choice_intervals(
        hidden,
        unembedding,
        tokens,
        where=where,
        transposed=transposed,
        frozen=frozen,
        temperature=temperature,
        soft_cap=soft_cap,
        axis_name=axis_name,
        gather_axis=gather_axis,
        chunk=chunk,
        block_logits=block_logits,
        products=products,
        implementation=implementation,
    )[:2]


def choice_intervals(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V], or [V, E] if transposed
    tokens: Array,  # i32[N]
    *,
    where: Array | None = None,  # bool[N]
    transposed: bool = False,
    frozen: bool = False,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    axis_name: str | None = None,
    gather_axis: str | None = None,
    noise: NoiseKind = "inverse_cdf",
    chunk: tuple[int, int] | None = None,
    block_logits: int = _BLOCK_LOGITS,
    products: str | None = "xla",
    implementation: str | None = None,
) -> tuple[Array, Array, Array]:  # f32[N], f32[N], f32[N] or f32[N, levels, 16]
    """Compute `selected_logprobs`, and the probabilities that noise decides between.

    A reader of both can check that a token is the one that its noise selects (`tokens_from_noise`).
    They have no gradient. Other arguments and errors are those of `selected_logprobs`.

    Args:
        noise: "inverse_cdf": the probability of all ids smaller than the token; noise in
            [below, below + exp(logprob)) selects it. "tree": those of all children of each node on
            the way to the token; it is selected where on each level l its child, of index
            (token >> 4 l) & 15, has the largest probability for its number.
    """
    _check(
        hidden,
        unembedding,
        tokens,
        where,
        transposed,
        temperature,
        soft_cap,
        axis_name,
        gather_axis,
        chunk,
    )
    check_kind(noise)
    N, V = hidden.shape[0], vocabulary_size(unembedding, None, transposed=transposed)
    fewest = _FEWEST_ROWS if where is None else _FEWEST_OF_SOME
    rows, entries = chunk or _default_chunk(N, V, block_logits, fewest)
    options = Options(
        temperature=float(temperature),
        soft_cap=soft_cap,
        axis_name=axis_name,
        gather_axis=gather_axis,
        rows=min(rows, N),
        entries=min(entries, V),
        products=products,
        transposed=transposed,
        frozen=frozen,
        noise=noise,
    )
    name = choose_plain(implementation)
    return _select(hidden, unembedding, tokens, where, options=options, name=name)


# Compiled on its own when called eagerly.
@partial(jax.jit, static_argnames=("options", "name"))
def _select(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    where: Array | None,
    *,
    options: Options,
    name: str,
) -> tuple[Array, Array, Array]:
    select = _PROGRAMS[name]
    if where is None:
        return select(hidden, unembedding, tokens, None, options)
    order = jnp.argsort(~where, stable=True)
    place = jnp.argsort(order)
    found = select(_permuted(hidden, order), unembedding, tokens[order], where.sum(), options)
    logprobs, entropy, masses = (jnp.where(like(where, x), _permuted(x, place), 0.0) for x in found)
    return logprobs, entropy, masses


def _permuted(values: Array, order: Array) -> Array:
    return values.at[order].get(unique_indices=True, mode="promise_in_bounds")


def _default_chunk(N: int, V: int, block_logits: int, fewest: int) -> tuple[int, int]:
    """Choose blocks of whole rows: all of them, or blocks of nearly equal size."""
    most = max(fewest, block_logits // V // _ROWS_STEP * _ROWS_STEP)
    if most >= N:
        return N, V
    return math.ceil(N / math.ceil(N / most) / _ROWS_STEP) * _ROWS_STEP, V


def _check(
    hidden: Any,
    unembedding: Any,
    tokens: Any,
    where: Any,
    transposed: bool,
    temperature: float,
    soft_cap: float | None,
    axis_name: str | None,
    gather_axis: str | None,
    chunk: tuple[int, int] | None,
) -> None:
    def require(holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(message)

    for axis, what in ((axis_name, "columns"), (gather_axis, "rows")):
        require(
            axis is None or axis in varying(unembedding),
            f"unembedding is not split over axis {axis!r}; call this inside jax.shard_map with "
            f"in_specs that split its {what}, and leave check_vma on",
        )
    require(
        hidden.ndim == 2 and 0 not in hidden.shape,
        f"hidden has shape {hidden.shape}; it must be [rows, width]",
    )
    parts = 1 if gather_axis is None else jax.lax.axis_size(gather_axis)
    E = hidden.shape[1] // parts
    require(
        E * parts == hidden.shape[1],
        f"hidden has width {hidden.shape[1]}; axis {gather_axis!r} with its {parts} devices must "
        "divide it",
    )
    split = axis_name is not None or gather_axis is not None
    require(not (transposed and split), "a transposed matrix must be whole, and this one is split")
    require(
        unembedding.ndim == 2
        and 0 not in unembedding.shape
        and unembedding.shape[1 if transposed else 0] == E,
        f"unembedding has shape {unembedding.shape}; it must be "
        + (f"[vocabulary, {E}]" if transposed else f"[{E}, vocabulary]"),
    )
    for name, array in {"hidden": hidden, "unembedding": unembedding}.items():
        require(
            str(array.dtype) in _FLOATS,
            f"{name} has type {array.dtype}; it must be one of {', '.join(_FLOATS)}",
        )
    require(
        hidden.dtype == unembedding.dtype,
        f"hidden has type {hidden.dtype} and unembedding {unembedding.dtype}; "
        "they must be equal, cast one",
    )
    require(
        tokens.shape == hidden.shape[:1],
        f"tokens has shape {tokens.shape}; it must be [{hidden.shape[0]}], one per row",
    )
    require(tokens.dtype == jnp.int32, f"tokens has type {tokens.dtype}; it must be int32")
    require(
        where is None or (where.shape == tokens.shape and where.dtype == jnp.bool_),
        f"where has shape {getattr(where, 'shape', ())} and type {getattr(where, 'dtype', None)}; "
        f"it must be [{hidden.shape[0]}] of bool, one per row",
    )
    require(temperature > 0, f"temperature is {temperature}; it must be above 0")
    require(
        soft_cap is None or soft_cap > 0,
        f"soft_cap is {soft_cap}; it must be positive, or None for no cap",
    )
    require(
        chunk is None or (len(chunk) == 2 and min(chunk) >= 1),
        f"chunk is {chunk}; it must be (rows, vocabulary entries), each at least 1",
    )
    if not isinstance(tokens, jax.core.Tracer):
        V = vocabulary_size(unembedding, axis_name, transposed=transposed)
        values = np.asarray(tokens)
        outside = values[(values < 0) | (values >= V)]
        require(
            outside.size == 0,
            f"tokens hold {outside[:3].tolist()}; the vocabulary has ids 0 to {V - 1}",
        )
