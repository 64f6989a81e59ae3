"""Attention over pages as an engine calls it: a decode step with all slots busy, and a mixed step.

Both have the row counts, slots, pages and options of the run. The reference is computed on the
host, since nothing that runs on the device is trusted yet.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray
from rlboost_kernels import kv_pages_shape, ragged_paged_attention
from rlboost_kernels.attention import attention_xla
from rlboost_kernels.attention.attention_api import choose_attention
from rlboost_kernels.problems import Arguments

from rlboost_jax.engine.layouts import make_layout
from rlboost_jax.models.adapters import base_model
from rlboost_jax.qualification.problem import (
    TOLERANCE,
    Candidate,
    Case,
    Inputs,
    TrialProblem,
    Variant,
)
from rlboost_jax.settings.engine_config import ATTENTION_FOR_GPU
from rlboost_jax.settings.memory_estimates import share_of
from rlboost_jax.settings.run_config import RunConfig

PLAIN: Final = "xla"
_POOL_BYTES: Final = 256 * 2**20  # of pages; sequences share them, no cache holds them
_CHUNK_CONTEXT: Final = 2048  # tokens that a chunk of a prompt sees, at most or as long as itself
_SINGLES: Final = 3  # sequences of one row beside that chunk
# A token too many or too few of a window of W changes a row by about 1 / sqrt(W) of its norm, which
# the tolerance lets pass if W is large. So values at the edges of what rows see are larger.
_SPIKE: Final = 16.0
# Only the order of the bounds counts. Source: benchmarks/h100/chip.py.
_MEMORY_RATE: Final = 3.35e12  # bytes per second
_TRIP_SECONDS: Final = 20e-6  # of a loop whose end the host has to learn


class EngineAttentionShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of attention calls on one device of an engine."""

    mixed_rows: int
    decode_rows: int
    slots: int
    slot_tokens: int
    pages_per_slot: int
    page_size: int
    query_heads: int
    key_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    scale: float
    soft_cap: float  # 0: none
    windows: tuple[int, ...]  # of the layers, each once; 0: none
    mixed_share: float  # mixed steps for each decode step of a run
    interpret: bool = False  # kernels for GPU step by step on CPU, for tests


def shape_of(run: RunConfig) -> EngineAttentionShape:
    """Sizes of the attention calls of a run's engines on an accelerator."""
    model = base_model(run.model)
    layout = make_layout(run.engine, run.slot_tokens, any_rows=False, exact=run.deterministic)
    share = share_of(model, run.engine.tensor_parallel)
    # All slots are prefilled once and then decode half of the longest response.
    prefills = run.engine.slots * run.engine.max_prompt_tokens / layout.token_rows
    return EngineAttentionShape(
        mixed_rows=layout.token_rows,
        decode_rows=layout.decode_rows[-1],
        slots=layout.slots,
        slot_tokens=run.slot_tokens,
        pages_per_slot=layout.pages_per_slot,
        page_size=layout.page_size,
        query_heads=share.num_query_heads,
        key_heads=share.num_key_heads,
        head_dim=model.head_dim,
        dtype=model.dtype,
        kv_dtype=run.engine.kv_dtype,
        scale=model.attention_scale,
        soft_cap=model.attention_soft_cap,
        windows=tuple(sorted(set(model.layer_windows))),
        mixed_share=prefills / max(1.0, run.sampling.max_response_tokens / 2),
    )


def problem(values: Mapping[str, Any]) -> TrialProblem:
    """Make the problem from an `EngineAttentionShape` as JSON has it."""
    shape = msgspec.convert(values, EngineAttentionShape)
    return TrialProblem(
        candidates=tuple(_candidates(shape)),
        plain=PLAIN,
        cases=tuple(_cases(shape)),
        tolerance=TOLERANCE[shape.dtype],
    )


def _candidates(shape: EngineAttentionShape) -> Iterator[Candidate]:
    """Yield candidates, bounded by a decode step's reads and the host's waits for its loops."""
    context = shape.slot_tokens / 2
    item = jnp.dtype(shape.kv_dtype).itemsize
    read = shape.slots * context * 2 * shape.key_heads * shape.head_dim * item / _MEMORY_RATE
    tiles = -(-shape.decode_rows // attention_xla.TILE_ROWS)
    trips = tiles * context / max(shape.page_size, attention_xla.BLOCK_TOKENS)
    bounds = {**dict.fromkeys(ATTENTION_FOR_GPU, read), PLAIN: read + trips * _TRIP_SECONDS}
    for name, bound in bounds.items():
        yield Candidate(
            name=name,
            bound=bound,
            run=partial(
                ragged_paged_attention,
                sm_scale=shape.scale,
                soft_cap=shape.soft_cap or None,
                implementation=name,
                interpret=shape.interpret,
            ),
            why_not=partial(_why_not, name, shape.interpret),
        )


def _why_not(name: str, interpret: bool, inputs: Inputs) -> str:
    try:
        choose_attention(name, *inputs[:2], interpret=interpret)
    except NotImplementedError as error:
        return str(error)
    return ""


def _cases(shape: EngineAttentionShape) -> Iterator[Case]:
    for window in shape.windows:
        lens = np.linspace(1, shape.slot_tokens, shape.slots).astype(np.int32)
        rows = np.ones(shape.slots, np.int32)
        share = 1 / len(shape.windows)
        yield _case(shape, "decode", window, rows, lens, shape.decode_rows, share)
        rows, lens = _chunk_and_singles(shape, window)
        weight = share * shape.mixed_share
        yield _case(shape, "mixed", window, rows, lens, shape.mixed_rows, weight)


def _chunk_and_singles(
    shape: EngineAttentionShape, window: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows and lengths of sequences: single tokens, a chunk of a prompt, and single tokens again.

    The chunk has more context than a window, if a slot has. The last row belongs to no sequence.
    """
    singles = min(_SINGLES, shape.slots - 1, max(0, shape.mixed_rows - 2))
    longest = shape.slot_tokens
    chunk = max(1, min(shape.mixed_rows - singles - 1, longest))
    lens = [max(1, longest // (2 + i)) for i in range(singles)]
    lens.insert(singles // 2, min(longest, max(window + chunk, _CHUNK_CONTEXT)))
    rows = [1] * singles
    rows.insert(singles // 2, chunk)
    return np.array(rows, np.int32), np.array(lens, np.int32)


def _case(
    shape: EngineAttentionShape,
    name: str,
    window: int,
    rows: NDArray[np.int32],
    lens: NDArray[np.int32],
    num_rows: int,
    weight: float,
) -> Case:
    """Attention of one step, with inputs made on demand.

    Args:
        rows: of `num_rows`, of each sequence.
        lens: tokens of each sequence.
    """
    places = num_rows if name == "decode" else shape.slots  # as `engine/step_inputs.py` has them
    return Case(
        name=f"{name} step" + (f" with a window of {window}" if window else ""),
        weight=weight,
        make=partial(_inputs, shape, rows, lens, num_rows, places, window),
        reference=partial(on_host, shape=shape, window=window),
        options={"sliding_window": window or None},
        variants=_variants,
    )


def _inputs(
    shape: EngineAttentionShape,
    rows: NDArray[np.int32],
    lens: NDArray[np.int32],
    num_rows: int,
    places: int,
    window: int,
) -> Arguments:
    """Draw normal queries, keys and values, with large values at the edges of the visible range.

    The edges are those of what a sequence's first and last row see. Each sequence has an order of
    pages of its own.
    """
    rng, count, most = np.random.default_rng(0), len(rows), shape.pages_per_slot
    page = kv_pages_shape(1, shape.page_size, shape.key_heads, shape.head_dim)
    page_bytes = int(np.prod(page)) * jnp.dtype(shape.kv_dtype).itemsize
    num_pages = max(most, min(count * most, _POOL_BYTES // page_bytes))
    table = np.zeros((places, most), np.int32)
    for sequence in range(count):
        table[sequence] = rng.permutation(num_pages)[:most]
    large = np.zeros((num_pages, shape.page_size), bool)
    for sequence, own in enumerate(zip(lens - rows, lens - 1, strict=True)):
        for position in _edges(own, window, most * shape.page_size):
            large[table[sequence, position // shape.page_size], position % shape.page_size] = True
    kv_lens = np.zeros(places, np.int32)
    kv_lens[:count] = lens
    starts = np.full(places + 1, rows.sum(), np.int32)
    starts[: count + 1] = np.cumsum([0, *rows])

    def normal(seed: int, sizes: tuple[int, ...], dtype: str) -> Array:
        return jax.random.normal(jax.random.key(seed), sizes, jnp.float32).astype(dtype)

    def with_edges(seed: int, large: Array) -> Array:
        """Draw pages of alternating keys and values, with spiked values at the edges."""
        pages = jax.random.normal(jax.random.key(seed), (num_pages, *page[1:]), jnp.float32)
        of_values = jnp.arange(pages.shape[2]) % 2 == 1
        spikes = large[:, :, None, None] & of_values[None, None, :, None]
        return jnp.where(spikes, _SPIKE * pages, pages).astype(shape.kv_dtype)

    draw = jax.jit(normal, static_argnums=(0, 1, 2))
    return Arguments(
        q=draw(0, (num_rows, shape.query_heads, shape.head_dim), shape.dtype),
        kv_pages=jax.jit(with_edges, static_argnums=0)(1, jnp.asarray(large)),
        kv_lens=jnp.asarray(kv_lens),
        page_indices=jnp.asarray(table),
        cu_q_lens=jnp.asarray(starts),
        num_seqs=jnp.asarray([count], jnp.int32),
    )


def _edges(own: Iterable[int], window: int, most: int) -> Iterator[int]:
    """Yield neighbouring positions below `most` of which one is visible and one is not.

    Args:
        own: positions of rows.
    """
    for row in own:
        near = (row, row + 1, *((row - window, row - window + 1) if window else ()))
        yield from (int(position) for position in near if 0 <= position < most)


def on_host(
    inputs: Inputs, *, shape: EngineAttentionShape, window: int
) -> tuple[Float[np.ndarray, "T H D"]]:
    """Attention sequence by sequence and key head by key head, on the host.

    In float64, or of 16-bit types in float32, whose error is a thousandth of their tolerance.
    """
    q, kv_pages, kv_lens, table, starts, num = (np.asarray(a) for a in inputs)
    wide = np.float64 if shape.dtype == "float32" else np.float32
    q, kv_pages = q.astype(wide), kv_pages.astype(wide)
    out = np.zeros(q.shape)
    group, width = shape.query_heads // shape.key_heads, shape.head_dim
    for s in range(int(num[0])):
        begin, end, length = starts[s], starts[s + 1], kv_lens[s]
        pages = table[s, : -(-length // shape.page_size)]
        tokens = kv_pages[pages].reshape(-1, *kv_pages.shape[2:])[:length]
        position = np.arange(length)
        own = np.repeat(length - (end - begin) + np.arange(end - begin), group)
        seen = position[None, :] <= own[:, None]
        if window:
            seen &= position[None, :] > own[:, None] - window
        for head in range(shape.key_heads):
            keys, values = tokens[:, 2 * head], tokens[:, 2 * head + 1]
            mine = slice(head * group, (head + 1) * group)
            rows = q[begin:end, mine].reshape(-1, width)
            scores = rows @ keys.T * wide(shape.scale)
            if shape.soft_cap:
                scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
            scores = np.where(seen, scores, wide(-np.inf))
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            summed = weights @ values / weights.sum(axis=1, keepdims=True)
            out[begin:end, mine] = summed.reshape(-1, group, width)
    return (out,)


def _variants(inputs: Inputs) -> tuple[Variant, ...]:
    """Place the longest chunk alone in the first rows, and decode its last row in other places."""
    whole = Arguments(*inputs)
    starts, count = np.asarray(whole.cu_q_lens), int(np.asarray(whole.num_seqs)[0])
    rows = np.diff(starts[: count + 1])
    longest = int(np.flatnonzero(rows == rows.max())[-1])
    begin, end = int(starts[longest]), int(starts[longest + 1])
    places = len(whole.kv_lens)

    def alone() -> Inputs:
        return whole._replace(
            q=jnp.roll(whole.q, -begin, axis=0),
            kv_lens=jnp.zeros_like(whole.kv_lens).at[0].set(whole.kv_lens[longest]),
            page_indices=jnp.zeros_like(whole.page_indices).at[0].set(whole.page_indices[longest]),
            cu_q_lens=jnp.full_like(whole.cu_q_lens, end - begin).at[0].set(0),
            num_seqs=jnp.ones_like(whole.num_seqs),
        )

    def decoded() -> Inputs:
        """Decode the row in every place, as often as there are rows for."""
        copies = min(places, len(whole.q))
        return whole._replace(
            q=jnp.broadcast_to(whole.q[end - 1], whole.q.shape),
            kv_lens=jnp.full_like(whole.kv_lens, whole.kv_lens[longest]),
            page_indices=jnp.broadcast_to(whole.page_indices[longest], whole.page_indices.shape),
            cu_q_lens=jnp.minimum(jnp.arange(places + 1, dtype=jnp.int32), copies),
            num_seqs=jnp.full_like(whole.num_seqs, copies),
        )

    copies = min(places, len(whole.q))
    return (
        Variant(
            name="without its companions",
            inputs=alone,
            rows=slice(0, end - begin),
            same_as=slice(begin, end),
        ),
        *(
            Variant(
                name=f"as row {row} of a decode step",
                inputs=decoded,
                rows=slice(row, row + 1),
                same_as=slice(end - 1, end),
            )
            for row in sorted({0, copies - 1})
        ),
    )
