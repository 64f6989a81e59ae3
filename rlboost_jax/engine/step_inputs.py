"""The inputs of a step program, packed into one int32 array: one host-to-device copy a dispatch.

    mixed:  [number of sequences] [T rows: token, position, KV slot] [S sequences: a record]
    decode: [number of sequences, steps] [R sequences: a record]
    verify: [number of sequences, steps] [R sequences: a record] [L rows: a known token]

A sequence's record is the row that a rollout carries with it (`EngineRollout.record`); the columns
are named here. Floats and unsigned numbers travel by their bits. Unused sequences and rows are
all zero, which every program must survive.

Decode steps may be packed before the host has read what those before them yield: all but the
newest token is known by then, and that one is on the device (`ends`).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt
from numpy.typing import NDArray

from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.sequences.shared_limits import MAX_STOP_IDS

# Columns of a sequence's record.
TOKEN: Final = 0  # newest token; -1 - i: what sequence i of the last decode steps ended with
LENGTH: Final = 1  # tokens whose keys and values exist after this step
QUERY_END: Final = 2  # row after the sequence's last known token (mixed step, verification)
BUDGET: Final = 3  # most tokens it may yield in this dispatch
RESPONSE: Final = 4  # place of the next token after the prompt, given tokens included
SEED: Final = 5
BATCH: Final = 6
SAMPLE: Final = 7
TEMPERATURE: Final = 8
TOP_P: Final = 9
TOP_K: Final = 10
STOP: Final = 11  # MAX_STOP_IDS columns, filled up with -1
PAGES: Final = STOP + MAX_STOP_IDS  # the page table: the remaining columns

_MIXED_HEADER: Final = 1
_DECODE_HEADER: Final = 2
_ROW: Final = 3


class Chunk(NamedTuple):
    """Consecutive tokens of a sequence from `start` on, to be run in a mixed step."""

    record: NDArray[np.int32]
    tokens: NDArray[np.int32]
    start: int


class Controls(NamedTuple):
    """How each row is sampled. Rows without a sequence are zero: greedy, with no effect."""

    seed: UInt[Array, " R"]
    batch: UInt[Array, " R"]
    sample: UInt[Array, " R"]
    temperature: Float[Array, " R"]
    top_p: Float[Array, " R"]
    top_k: Int[Array, " R"]
    stop_ids: Int[Array, "R I"]


class StepRows(NamedTuple):
    """One step over token rows, in the form that attention and the KV update take."""

    tokens: Int[Array, " T"]
    positions: Int[Array, " T"]
    kv_slots: Int[Array, " T"]  # page * page_size + offset; outside the pool: not written
    kv_lens: Int[Array, " S"]
    page_table: Int[Array, "S M"]
    query_starts: Int[Array, " S+1"]
    num_sequences: Int[Array, " 1"]


def record_width(layout: StepLayout) -> int:
    return PAGES + layout.pages_per_slot


def pack_mixed(layout: StepLayout, chunks: Sequence[Chunk]) -> NDArray[np.int32]:
    """Pack the input of a mixed step. Chunk i becomes sequence i; its budget is in its record."""
    T = layout.token_rows
    begin, end = _MIXED_HEADER, _MIXED_HEADER + _ROW * T
    packed = np.zeros(end + layout.slots * record_width(layout), np.int32)
    packed[0] = len(chunks)
    rows = packed[begin:end].reshape(_ROW, T)
    records = packed[end:].reshape(layout.slots, record_width(layout))
    rows[2] = _nowhere(layout, T)
    row = 0
    for index, (record, tokens, start) in enumerate(chunks):
        here, end = slice(row, row + len(tokens)), start + len(tokens)
        positions = np.arange(start, end, dtype=np.int32)
        pages = record[PAGES + positions // layout.page_size]
        rows[0, here] = tokens
        rows[1, here] = positions
        rows[2, here] = pages * layout.page_size + positions % layout.page_size
        row += len(tokens)
        records[index] = record
        records[index, LENGTH] = end
        records[index, QUERY_END] = row
    return packed


def kv_slots(layout: StepLayout, packed: NDArray[np.int32]) -> NDArray[np.int32]:
    """KV slot of each row of a mixed step; unused rows have one outside the pool."""
    rows = packed[_MIXED_HEADER : _MIXED_HEADER + _ROW * layout.token_rows]
    return rows.reshape(_ROW, layout.token_rows)[2]


def pack_decode(
    layout: StepLayout, records: Sequence[NDArray[np.int32]], steps: int, *, rows: int = 0
) -> NDArray[np.int32]:
    """Pack the input of up to `steps` decode steps of the given sequences.

    Args:
        rows: of `layout.decode_rows`; 0 takes the fewest that do.
    """
    rows = rows or layout.rows_for(len(records))
    packed = np.zeros(_DECODE_HEADER + rows * record_width(layout), np.int32)
    packed[0], packed[1] = len(records), steps
    table = packed[_DECODE_HEADER:].reshape(rows, record_width(layout))
    if records:
        np.stack(records, out=table[: len(records)])
    return packed


def pack_verify(
    layout: StepLayout, chunks: Sequence[Chunk], steps: int, *, rows: int
) -> NDArray[np.int32]:
    """Pack the input of up to `steps` steps with drafts; the first of them runs these chunks.

    Args:
        rows: of `layout.verified_rows`.
    """
    records = [chunk.record for chunk in chunks]
    packed = pack_decode(layout, records, steps, rows=layout.drafted_for(rows))
    table = packed[_DECODE_HEADER:].reshape(-1, record_width(layout))
    row, tokens = 0, np.zeros(rows, np.int32)
    for record, chunk in zip(table, chunks, strict=False):
        tokens[row : row + len(chunk.tokens)] = chunk.tokens
        row += len(chunk.tokens)
        record[LENGTH], record[QUERY_END] = chunk.start + len(chunk.tokens), row
    return np.concatenate([packed, tokens])


def pack_copies(layout: StepLayout, copies: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Pack page copies, sources over destinations, one per slot; unused entries copy nothing."""
    packed = np.zeros((2, layout.slots), np.int32)
    packed[1] = layout.num_pages + np.arange(layout.slots)
    if copies:
        packed[:, : len(copies)] = np.array(copies).T
    return packed


def unpack_mixed(
    layout: StepLayout, packed: Int[Array, " _"]
) -> tuple[StepRows, Int[Array, "R _"], Int[Array, " R"]]:
    """Traced: the rows of a mixed step, the records, and the last row of each sequence.

    There are as many records as the widest decode step has: what samples runs over them.
    """
    T, S = layout.token_rows, layout.slots
    begin, end = _MIXED_HEADER, _MIXED_HEADER + _ROW * T
    tokens, positions, kv_slots = packed[begin:end].reshape(_ROW, T)
    records = packed[end:].reshape(S, record_width(layout))
    records = jnp.pad(records, ((0, layout.decode_rows[-1] - S), (0, 0)))
    num_sequences = packed[:1]
    used = jnp.arange(S) < num_sequences
    ends = jnp.where(used, records[:S, QUERY_END], 0)
    rows = StepRows(
        tokens=tokens,
        positions=positions,
        kv_slots=kv_slots,
        kv_lens=records[:S, LENGTH],
        page_table=records[:S, PAGES:],
        query_starts=jnp.concatenate([jnp.zeros(1, jnp.int32), ends]),
        num_sequences=num_sequences,
    )
    return rows, records, jnp.maximum(records[:, QUERY_END] - 1, 0)


def unpack_decode(
    layout: StepLayout, packed: Int[Array, " _"], ends: Int[Array, " N"]
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, "R _"]]:
    """Traced: number of sequences, number of steps, and the records.

    Args:
        ends: newest token of each sequence of the last decode steps, -1 if a stop id was met. Such
            a sequence gets the budget 0.
    """
    records = packed[_DECODE_HEADER:].reshape(-1, record_width(layout))
    tokens, budgets = records[:, TOKEN], records[:, BUDGET]
    tokens = jnp.where(tokens < 0, ends[jnp.maximum(-1 - tokens, 0)], tokens)
    records = records.at[:, TOKEN].set(tokens)
    return packed[0], packed[1], records.at[:, BUDGET].set(jnp.where(tokens < 0, 0, budgets))


def unpack_verify(
    layout: StepLayout, packed: Int[Array, " _"], num_records: int
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, "R _"], Int[Array, " L"]]:
    """Traced: number of sequences, number of steps, the records, and the known tokens."""
    end = _DECODE_HEADER + num_records * record_width(layout)
    records = packed[_DECODE_HEADER:end].reshape(num_records, record_width(layout))
    return packed[0], packed[1], records, packed[end:]


def decode_rows(
    layout: StepLayout,
    records: Int[Array, "R _"],
    num_sequences: Int[Array, ""],
    tokens: Int[Array, " R"],
    lengths: Int[Array, " R"],
    live: Bool[Array, " R"],
) -> StepRows:
    """Traced: one decode step, sequence i in row i.

    A sequence that has stopped keeps its row: it looks at one token and writes nothing.
    """
    R, size = len(records), layout.page_size
    positions = jnp.where(live, lengths - 1, 0)
    pages = jnp.take_along_axis(records[:, PAGES:], (positions // size)[:, None], 1)[:, 0]
    return StepRows(
        tokens=jnp.where(live, tokens, 0),
        positions=positions,
        kv_slots=jnp.where(live, pages * size + positions % size, _nowhere(layout, R)),
        kv_lens=positions + 1,
        page_table=records[:, PAGES:],
        query_starts=jnp.minimum(jnp.arange(R + 1, dtype=jnp.int32), num_sequences),
        num_sequences=num_sequences[None],
    )


def verify_rows(
    layout: StepLayout,
    records: Int[Array, "R _"],
    num_sequences: Int[Array, ""],
    *,
    of: Int[Array, " L"],
    tokens: Int[Array, " L"],
    positions: Int[Array, " L"],
    used: Bool[Array, " L"],
    lengths: Int[Array, " R"],
    ends: Int[Array, " R"],
) -> StepRows:
    """Traced: one step in which a sequence has several rows: known tokens, then drafts.

    Args:
        of: sequence of each row.
        used: whether a row has a token; others write nothing.
        lengths: tokens that each sequence's last row may attend to.
        ends: row after each sequence's last one.
    """
    size = layout.page_size
    positions = jnp.where(used, positions, 0)
    pages = records[of, PAGES + positions // size]
    return StepRows(
        tokens=tokens,
        positions=positions,
        kv_slots=jnp.where(used, pages * size + positions % size, _nowhere(layout, len(of))),
        kv_lens=lengths,
        page_table=records[:, PAGES:],
        query_starts=jnp.concatenate([jnp.zeros(1, jnp.int32), ends.astype(jnp.int32)]),
        num_sequences=num_sequences[None],
    )


def controls(records: Int[Array, "R _"]) -> Controls:
    """Traced: how to sample, from the records."""
    unsigned, real = jnp.uint32, jnp.float32
    return Controls(
        seed=jax.lax.bitcast_convert_type(records[:, SEED], unsigned),
        batch=jax.lax.bitcast_convert_type(records[:, BATCH], unsigned),
        sample=jax.lax.bitcast_convert_type(records[:, SAMPLE], unsigned),
        temperature=jax.lax.bitcast_convert_type(records[:, TEMPERATURE], real),
        top_p=jax.lax.bitcast_convert_type(records[:, TOP_P], real),
        top_k=records[:, TOP_K],
        stop_ids=records[:, STOP:PAGES],
    )


def _nowhere(layout: StepLayout, rows: int) -> NDArray[np.int32]:
    """A KV slot outside the pool for each row, no two alike: the update assumes distinct ones."""
    return layout.num_pages * layout.page_size + np.arange(rows, dtype=np.int32)
