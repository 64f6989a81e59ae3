"""What both GPU implementations are held to, interpreted on CPU, and a device to lower for."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels.problems import Problem, random_arguments

TOLERANCES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}  # of the relative norm


@pytest.fixture
def assert_matches_loops():
    return _assert_matches_loops


@pytest.fixture
def assert_same_bits():
    return _assert_same_bits


@pytest.fixture
def an_h100():
    """What lowering looks up about a device, from jax 0.11 on, where there is none."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


@pytest.fixture
def decode_arguments():
    """Shapes of what attention is given for a token of each of 32 sequences."""
    return _decode_arguments


@pytest.fixture
def assert_runs_in_a_loop():
    return _assert_runs_in_a_loop


def _decode_arguments(*, heads, **sizes):
    problem = Problem(
        name="decode",
        q_lens=(1,) * 32,
        kv_lens=(1000,) * 32,
        num_query_heads=heads[0],
        num_key_heads=heads[1],
        num_rows=64,
        **sizes,
    )
    return jax.eval_shape(lambda: random_arguments(problem))


def _assert_runs_in_a_loop(step, q):
    """Compiled, with the same bits as two calls."""

    def looped(q):
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, step(c[1])), (0, q))[1]

    np.testing.assert_array_equal(jax.jit(looped)(q), step(step(q)))


def _assert_matches_loops(attend, problem, options):
    """Also where pages hold NaN after a sequence's end, and for rows of no sequence."""
    arguments = random_arguments(problem)
    expected, expected_lse = _by_hand(arguments, **options)
    out, lse = attend(*_spoil(arguments), **options, return_lse=True)
    assert out.dtype == problem.dtype
    error = np.linalg.norm(np.asarray(out, np.float64) - expected)
    assert error <= TOLERANCES[problem.dtype] * np.linalg.norm(expected)
    assert sum(problem.q_lens) < len(out)
    assert not np.asarray(out[sum(problem.q_lens) :], np.float32).any()
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-6, atol=1e-5)


def _by_hand(arguments, *, sm_scale=None, sliding_window=None, soft_cap=None, k_scale=1, v_scale=1):
    """Attention and the logarithms of its sums, one row and head at a time in float64."""
    q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs = map(np.asarray, arguments)
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    group = q.shape[1] // (kv_pages.shape[2] // 2)
    for s in range(num_seqs[0]):
        tokens = kv_pages[page_indices[s] % len(kv_pages)].astype(np.float64)
        tokens = tokens.reshape(-1, *kv_pages.shape[2:])
        for row in range(cu_q_lens[s], cu_q_lens[s + 1]):
            stop = kv_lens[s] - (cu_q_lens[s + 1] - row) + 1
            first = max(0, stop - sliding_window) if sliding_window else 0
            for h in range(q.shape[1]):
                k, v = (tokens[first:stop, 2 * (h // group) + odd] for odd in (0, 1))
                scores = (
                    k @ q[row, h].astype(np.float64) * k_scale * (sm_scale or q.shape[2] ** -0.5)
                )
                scores = soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ v / weights.sum() * v_scale
                lse[row, h] = scores.max() + np.log(weights.sum())
    return out, lse


def _spoil(arguments):
    """NaN wherever no sequence holds a token, and pages of any number after those in use."""
    kv_pages, pages = np.array(arguments.kv_pages), np.array(arguments.page_indices)
    L, held = kv_pages.shape[1], np.zeros(kv_pages.shape[:2], bool)
    for s in range(int(arguments.num_seqs[0])):
        position = np.arange(int(arguments.kv_lens[s]))
        held[pages[s, position // L], position % L] = True
        pages[s, -(-len(position) // L) :] = [-1, 10**6, -(10**6)][s % 3]
    kv_pages[~held] = np.nan
    return arguments._replace(kv_pages=jnp.asarray(kv_pages), page_indices=jnp.asarray(pages))


def _assert_same_bits(
    attend, *, dtype, num_rows, longest, head_dim, page_size, chunks, kv_dtype=None
):
    """Rows of one prefill are found again, bit by bit, in any company and cut in any way.

    Args:
        chunks: (start, stop, rows of a companion that come first) of one sequence.
    """
    rng = np.random.default_rng(0)
    H, K, D, L = 4, 2, head_dim, page_size
    M = longest // L
    kv = rng.standard_normal((longest, 2 * K, D), np.float32)
    q = rng.standard_normal((longest, H, D), np.float32)
    run = jax.jit(attend)

    def rows(start, stop, other):
        kv_pages = rng.standard_normal((2 * M + 3, L, 2 * K, D), np.float32)
        pages = rng.permutation(len(kv_pages))[: 2 * M].reshape(2, M)
        slot = int(other > 0)
        position = np.arange(stop)
        kv_pages[pages[slot, position // L], position % L] = kv[:stop]
        kv_lens, q_lens = [0, 0], [0, 0]
        kv_lens[slot], q_lens[slot] = stop, stop - start
        kv_lens[1 - slot], q_lens[1 - slot] = longest // 2, other
        queries = rng.standard_normal((num_rows, H, D), np.float32)
        queries[other : other + stop - start] = q[start:stop]
        integers = (kv_lens, pages, np.cumsum([0, *q_lens]), [2])
        out = run(
            jnp.asarray(queries, dtype),
            jnp.asarray(kv_pages, kv_dtype or dtype),
            *(jnp.asarray(array, jnp.int32) for array in integers),
        )
        return np.asarray(out[other : other + stop - start])

    for start, stop, other in chunks:
        expected = np.concatenate([rows(i, i + 1, 0) for i in range(start, stop)])
        assert rows(start, stop, other).tobytes() == expected.tobytes()
