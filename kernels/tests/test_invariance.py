"""The bits of a row do not depend on anything but its own query, sequence and position."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import kv_pages_shape, ragged_paged_attention, update_kv_pages

LONGEST = 150  # tokens
NUM_SEQUENCES = 9
SLOTS = 8


class World(NamedTuple):
    """Sequences whose every query, key and value is known in advance."""

    q: np.ndarray  # [sequence, position, H, D]
    kv: np.ndarray  # [sequence, position, 2*K, D]
    page_size: int
    dtype: str
    kv_dtype: str
    options: dict


def world(
    num_query_heads=4,
    num_key_heads=2,
    head_dim=32,
    page_size=16,
    dtype="float32",
    kv_dtype=None,
    **options,
):
    rng = np.random.default_rng(5)
    shape = (NUM_SEQUENCES, LONGEST)
    return World(
        rng.standard_normal((*shape, num_query_heads, head_dim), np.float32),
        rng.standard_normal((*shape, 2 * num_key_heads, head_dim), np.float32),
        page_size,
        dtype,
        kv_dtype or dtype,
        options,
    )


WORLDS = {
    "small": world(),
    "bfloat16": world(dtype="bfloat16"),
    "8 bits": world(dtype="bfloat16", kv_dtype="float8_e4m3fn", k_scale=0.3, v_scale=2.0),
    "8 bits to 32": world(7, 1, 64, 32, kv_dtype="float8_e5m2"),
    "groups of 7, window and cap": world(7, 1, 64, 32, sliding_window=45, soft_cap=5.0),
    "wide heads": world(8, 4, 128),
}


def run(world, chunks, num_rows, rng, implementation):
    """Bytes of each (sequence, position) after one call over `chunks` of (sequence, start, stop).

    Pages are drawn from a pool that holds stale numbers, as a reused page does.
    """
    L, (H, D) = world.page_size, world.q.shape[2:]
    M = -(-LONGEST // L)
    kv_pages = rng.standard_normal((SLOTS * M + 5, L, world.kv.shape[2], D), np.float32)
    page_indices = rng.permutation(len(kv_pages))[: SLOTS * M].reshape(SLOTS, M).astype(np.int32)
    q = rng.standard_normal((num_rows, H, D), np.float32)
    kv_lens, cu_q_lens = np.zeros(SLOTS, np.int32), np.zeros(SLOTS + 1, np.int32)
    for slot, (sequence, start, stop) in enumerate(chunks):
        for position in range(stop):
            page = page_indices[slot, position // L]
            kv_pages[page, position % L] = world.kv[sequence, position]
        kv_lens[slot], cu_q_lens[slot + 1] = stop, cu_q_lens[slot] + stop - start
        q[cu_q_lens[slot] : cu_q_lens[slot + 1]] = world.q[sequence, start:stop]
    cu_q_lens[len(chunks) + 1 :] = cu_q_lens[len(chunks)]
    out = ragged_paged_attention(
        jnp.asarray(q, world.dtype),
        jnp.asarray(kv_pages, world.kv_dtype),
        *map(jnp.asarray, (kv_lens, page_indices, cu_q_lens)),
        jnp.asarray([len(chunks)], jnp.int32),
        implementation=implementation,
        **world.options,
    )
    out = np.asarray(out)
    return {
        (sequence, position): out[cu_q_lens[slot] + position - start].tobytes()
        for slot, (sequence, start, stop) in enumerate(chunks)
        for position in range(start, stop)
    }


def random_chunks(num_rows, rng):
    """One chunk (of 1 to 39 rows, or one decoded row) of some of the sequences, in any order."""
    chunks, left = [], num_rows
    for sequence in rng.permutation(NUM_SEQUENCES)[: rng.integers(1, SLOTS + 1)]:
        rows = min(left, int(rng.choice([1, rng.integers(1, 40)])))
        if rows:
            start = int(rng.integers(0, LONGEST - rows + 1))
            chunks.append((int(sequence), start, start + rows))
            left -= rows
    return chunks


@pytest.fixture(scope="module")
def alone():
    """Every row as computed in one prefill of its sequence with nobody else there."""
    known = {}

    def bits(name, implementation):
        if (name, implementation) not in known:
            rng = np.random.default_rng(0)
            known[name, implementation] = {
                row: value
                for sequence in range(NUM_SEQUENCES)
                for row, value in run(
                    WORLDS[name], [(sequence, 0, LONGEST)], 256, rng, implementation
                ).items()
            }
        return known[name, implementation]

    return bits


CASES = (
    *(("xla", "small", num_rows) for num_rows in (64, 256)),
    *(("xla", name, num_rows) for name in list(WORLDS)[1:] for num_rows in (64, 256)),
    *(("reference", "small", num_rows) for num_rows in (64, 80, 256)),
    ("reference", "groups of 7, window and cap", 64),
)
CPU_CASES = tuple((name, num_rows) for name in WORLDS for num_rows in (1, 7, 33, 64, 256))


@pytest.mark.parametrize(("implementation", "name", "num_rows"), CASES)
def test_slots_companions_pages_chunks_and_row_counts_cannot_show(
    implementation, name, num_rows, alone
):
    rng = np.random.default_rng(num_rows)
    expected = alone(name, implementation)
    for _ in range(5):
        chunks = random_chunks(num_rows, rng)
        for row, bits in run(WORLDS[name], chunks, num_rows, rng, implementation).items():
            assert bits == expected[row], f"row {row} of {chunks}"


@pytest.mark.parametrize(("name", "num_rows"), CPU_CASES)
def test_the_cpu_kernel_has_one_class_of_bits_for_any_number_of_rows(cpu, name, num_rows, alone):
    rng = np.random.default_rng(num_rows)
    expected = alone(name, cpu)
    for _ in range(5):
        chunks = random_chunks(num_rows, rng)
        for row, bits in run(WORLDS[name], chunks, num_rows, rng, cpu).items():
            assert bits == expected[row], f"row {row} of {chunks}"


def test_decoding_a_position_gives_the_bits_of_its_prefill(implementation, alone):
    rng = np.random.default_rng(1)
    expected = alone("small", implementation)
    for position in (0, 1, 15, 16, 31, 32, 63, 64, 100, LONGEST - 1):
        chunks = [(int(s), position, position + 1) for s in rng.permutation(NUM_SEQUENCES)[:SLOTS]]
        for row, bits in run(WORLDS["small"], chunks, 64, rng, implementation).items():
            assert bits == expected[row], f"row {row}"


@pytest.mark.parametrize("num_rows", [1, 7, 33, 80, 1024])
def test_the_xla_program_has_one_class_of_bits_for_any_number_of_rows(num_rows, alone):
    """Stronger than what is promised for every implementation: its tiles have one shape."""
    rng = np.random.default_rng(2)
    expected = alone("small", "xla")
    for _ in range(3):
        chunks = random_chunks(num_rows, rng)
        for row, bits in run(WORLDS["small"], chunks, num_rows, rng, "xla").items():
            assert bits == expected[row], f"row {row} of {chunks}"


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bits_written_token_by_token_or_at_once_give_the_same_rows(kv_dtype, implementation):
    """A number is rounded once, when it is written, and from the same number every time.

    So a sequence decoded in one place goes on in another after a prefill of all its tokens.
    """
    tokens, L, rng = 40, 16, np.random.default_rng(3)
    scales = {"k_scale": 0.7, "v_scale": 0.2}
    q, k, v = (rng.standard_normal((64, heads, 32), np.float32) for heads in (4, 2, 2))

    def rows(pages, chunks):
        """Bytes of each row, its chunk's keys and values written right before."""
        kv_pages = jnp.full(kv_pages_shape(9, L, 2, 32), 3, kv_dtype)
        found = []
        for start, stop in chunks:
            position = np.arange(start, start + 64)  # the rows of a call; what is too many, dropped
            slots = np.where(position < stop, pages[position // L % 3] * L + position % L, -1)
            index = position % 64
            kv_pages = update_kv_pages(
                kv_pages,
                k[index],
                v[index],
                jnp.asarray(slots, jnp.int32),
                **scales,
                implementation=implementation,
            )
            metadata = ([stop], pages[None], [0, stop - start], [1])
            out = ragged_paged_attention(
                jnp.asarray(q[index]),
                kv_pages,
                *(jnp.asarray(array, jnp.int32) for array in metadata),
                **scales,
                implementation=implementation,
            )
            found += [row.tobytes() for row in np.asarray(out[: stop - start])]
        return found

    decoded = rows(np.array([4, 1, 7]), [(i, i + 1) for i in range(tokens)])
    assert decoded == rows(np.array([2, 8, 0]), [(0, tokens)])
    assert decoded == rows(np.array([5, 3, 6]), [(0, 11), (11, 12), (12, tokens)])
