"""Ragged paged attention against float64 loops over rows, and against JAX's own definition."""

import importlib
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlboost_kernels import kv_pages_shape, ragged_paged_attention, update_kv_pages
from rlboost_kernels.attention.validation import EIGHT_BITS
from rlboost_kernels.problems import CHECKED, Arguments, Problem, random_arguments

ALL_OPTIONS = {
    "sm_scale": 0.5,
    "sliding_window": 37,
    "soft_cap": 3.0,
    "k_scale": 0.7,
    "v_scale": 2.5,
}
TOLERANCES = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}  # of the relative norm
# Of a number by a share of it at most, and of one below the smallest normal number by a constant.
ROUNDING = {"float8_e4m3fn": (2**-4, 2**-10), "float8_e5m2": (2**-3, 2**-17)}
CASES = (
    *((problem, ({}, ALL_OPTIONS)[i % 2]) for i, problem in enumerate(CHECKED)),
    *(
        pytest.param(problem, (ALL_OPTIONS, {})[i % 2], marks=pytest.mark.soak)
        for i, problem in enumerate(CHECKED)
    ),
    (CHECKED[1], {"sliding_window": 1}),
    (CHECKED[1], {"sliding_window": 20}),
    (CHECKED[1], {"soft_cap": 2.0}),
)


def attention_by_hand(
    arguments, *, sm_scale=None, sliding_window=None, soft_cap=None, k_scale=1, v_scale=1
):
    """A float64 softmax for one row and head at a time, and the logarithms of its sums."""
    q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs = map(np.asarray, arguments)
    heads, head_dim = q.shape[1:]
    group = heads // (kv_pages.shape[2] // 2)
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for s in range(num_seqs[0]):
        pages = page_indices[s, : -(-kv_lens[s] // kv_pages.shape[1])]
        tokens = np.concatenate([kv_pages[page] for page in pages]).astype(np.float64)
        for row in range(cu_q_lens[s], cu_q_lens[s + 1]):
            position = kv_lens[s] - (cu_q_lens[s + 1] - row)
            first = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
            for h in range(heads):
                keys = tokens[first : position + 1, 2 * (h // group)]
                values = tokens[first : position + 1, 2 * (h // group) + 1]
                scores = k_scale * keys @ q[row, h].astype(np.float64)
                scores *= sm_scale or head_dim**-0.5
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ values / weights.sum() * v_scale
                lse[row, h] = scores.max() + np.log(weights.sum())
    return out, lse


def assert_close(out, expected, dtype):
    error = np.linalg.norm(np.asarray(out, np.float64) - expected)
    assert error <= TOLERANCES[dtype] * np.linalg.norm(expected)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("problem", "options"), CASES, ids=lambda case: getattr(case, "name", str(case))
)
def test_matches_float64_loops(problem, options, implementation):
    arguments = random_arguments(problem)
    out = ragged_paged_attention(*arguments, **options, implementation=implementation)
    assert out.dtype == jnp.float32
    expected, _ = attention_by_hand(arguments, **options)
    np.testing.assert_allclose(out, expected, atol=3e-6)
    assert_close(out, expected, "float32")


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("problem", CHECKED[1:4], ids=lambda problem: problem.name)
def test_bfloat16_is_off_by_the_rounding_of_its_result_only(problem, implementation):
    arguments = random_arguments(replace(problem, dtype="bfloat16"))
    out = ragged_paged_attention(*arguments, implementation=implementation)
    assert out.dtype == jnp.bfloat16
    exact, _ = attention_by_hand(arguments)  # of the same bfloat16 inputs
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        ("float32", EIGHT_BITS[0]),
        ("bfloat16", EIGHT_BITS[0]),
        ("float16", EIGHT_BITS[1]),
        pytest.param("float32", EIGHT_BITS[1], marks=pytest.mark.soak),
        pytest.param("bfloat16", EIGHT_BITS[1], marks=pytest.mark.soak),
        pytest.param("float16", EIGHT_BITS[0], marks=pytest.mark.soak),
    ],
)
def test_pools_of_eight_bits_match_float64_loops(dtype, kv_dtype, implementation):
    problem = replace(CHECKED[2], dtype=dtype, kv_dtype=kv_dtype)
    arguments = with_nan_where_nothing_is_held(random_arguments(problem))
    assert arguments.kv_pages.dtype == kv_dtype
    out = ragged_paged_attention(*arguments, **ALL_OPTIONS, implementation=implementation)
    assert out.dtype == dtype
    assert_close(out, attention_by_hand(arguments, **ALL_OPTIONS)[0], dtype)  # of what is stored


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("what", ["key", "value"])
def test_a_token_that_is_no_number_is_seen_by_all_that_see_it(what, implementation):
    """A sum that is NaN is not the sum of a row that sees nothing."""
    arguments = random_arguments(CHECKED[2])
    kv_pages, first = np.array(arguments.kv_pages), int(arguments.page_indices[0, 0])
    kv_pages[first, 0, int(what == "value") :: 2] = np.nan  # the first token of a sequence
    damaged = arguments._replace(kv_pages=jnp.asarray(kv_pages))
    out, lse = ragged_paged_attention(*damaged, return_lse=True, implementation=implementation)
    end, rows = int(arguments.cu_q_lens[1]), int(arguments.cu_q_lens[arguments.num_seqs[0]])
    assert np.isnan(out[:end]).all() and np.isfinite(out[end:rows]).all()
    assert np.isnan(lse[:end]).all() == (what == "key") and np.isfinite(lse[end:rows]).all()


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_every_number_of_eight_bits_is_read_as_it_is(kv_dtype, implementation):
    """Attention to one token is its value; a score with a unit vector is a key's element."""
    numbers = np.arange(256, dtype=np.uint8).view(kv_dtype)
    keys = np.where(np.isfinite(numbers.astype(np.float32)), numbers, np.zeros_like(numbers))
    kv_pages = np.stack([keys, numbers])[None, None]
    out, lse = ragged_paged_attention(
        jnp.eye(256)[:, None, :],
        jnp.asarray(kv_pages),
        jnp.ones(256, jnp.int32),
        jnp.zeros((256, 1), jnp.int32),
        jnp.arange(257, dtype=jnp.int32),
        jnp.asarray([256], jnp.int32),
        sm_scale=1.0,
        return_lse=True,
        implementation=implementation,
    )
    np.testing.assert_array_equal(out, np.tile(numbers.astype(np.float32), (256, 1, 1)))
    np.testing.assert_allclose(lse[:, 0], keys.astype(np.float32), rtol=1e-6)


def with_tokens_written(arguments, kv_dtype, **scales):
    """The same problem, with what its pages hold written into a pool of another type."""
    kv = arguments.kv_pages.reshape(-1, *arguments.kv_pages.shape[2:])
    pool = jnp.zeros(arguments.kv_pages.shape, kv_dtype)
    slots = jnp.arange(len(kv), dtype=jnp.int32)
    return arguments._replace(
        kv_pages=update_kv_pages(pool, kv[:, 0::2], kv[:, 1::2], slots, **scales)
    )


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"k_scale": 0.125, "v_scale": 0.03}], ids=str)
@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_eight_bits_cost_no_more_than_their_rounding(kv_dtype, options, implementation):
    """Against attention to the numbers before they were stored, of a standard normal problem."""
    rounding, _ = ROUNDING[kv_dtype]
    arguments = random_arguments(CHECKED[2])
    stored = with_tokens_written(arguments, kv_dtype, **options)
    expected, _ = attention_by_hand(arguments)
    out = ragged_paged_attention(*stored, **options, implementation=implementation)
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert rounding / 8 < error < rounding


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"k_scale": 0.125, "v_scale": 0.03}], ids=str)
@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_an_average_is_off_by_the_rounding_of_what_it_is_of(kv_dtype, options, implementation):
    """Keys of zero, which are stored as they are: values are off by a share of their own size."""
    rounding, least = ROUNDING[kv_dtype]
    arguments = random_arguments(CHECKED[2])
    kv_pages = arguments.kv_pages.at[:, :, 0::2].set(0.0)
    sizes, _ = attention_by_hand(arguments._replace(kv_pages=jnp.abs(kv_pages)))
    arguments = arguments._replace(kv_pages=kv_pages)
    expected, _ = attention_by_hand(arguments)
    stored = with_tokens_written(arguments, kv_dtype, **options)
    out = ragged_paged_attention(*stored, **options, implementation=implementation)
    assert (np.abs(out - expected) <= rounding * sizes + least + 1e-6).all()


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("kv_dtype", [*TOLERANCES, *EIGHT_BITS])
def test_no_copy_of_the_pool_is_made(kv_dtype, implementation):
    if implementation == "reference":
        pytest.skip("the dense definition makes copies, by design")
    problem = replace(CHECKED[1], kv_dtype=kv_dtype)
    arguments = random_arguments(problem)
    pool = jnp.zeros(kv_pages_shape(2000, 16, 2, 32), kv_dtype)
    attend = jax.jit(partial(ragged_paged_attention, implementation=implementation))
    compiled = attend.lower(*arguments._replace(kv_pages=pool)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < pool.nbytes / 2


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"soft_cap": 2.0}], ids=str)
def test_matches_the_definition_in_jax(options, implementation):
    name = "jax.experimental.pallas.ops.tpu.ragged_paged_attention"
    theirs = pytest.importorskip(name).ref_ragged_paged_attention
    arguments = random_arguments(CHECKED[1])
    expected = theirs(*arguments, sm_scale=32**-0.5, **options)
    out = ragged_paged_attention(*arguments, **options, implementation=implementation)
    np.testing.assert_allclose(out[: len(expected)], expected, atol=3e-6)


@st.composite
def problems(draw) -> Problem:
    num_key_heads = draw(st.integers(1, 3))
    q_lens = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    kv_lens = [rows + draw(st.integers(0 if rows else 1, 50)) for rows in q_lens]
    return Problem(
        name="generated",
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        num_query_heads=num_key_heads * draw(st.integers(1, 7)),
        num_key_heads=num_key_heads,
        head_dim=draw(st.sampled_from([8, 32, 40, 48, 64, 80, 96, 256])),
        page_size=draw(st.sampled_from([1, 8, 16, 24, 48])),
        dtype=draw(st.sampled_from(list(TOLERANCES))),
        kv_dtype=draw(st.sampled_from(["", "", *EIGHT_BITS])),
        num_rows=sum(q_lens) + draw(st.integers(1, 20)),
        num_slots=len(q_lens) + draw(st.integers(0, 3)),
    )


@st.composite
def options(draw) -> dict:
    scale = st.none() | st.floats(0.1, 3.0)
    drawn = {
        "sm_scale": draw(st.none() | st.floats(0.05, 0.5)),
        "sliding_window": draw(st.none() | st.integers(1, 40)),
        "soft_cap": draw(st.none() | st.floats(0.5, 50.0)),
        "k_scale": draw(scale),
        "v_scale": draw(scale),
    }
    return {name: value for name, value in drawn.items() if value is not None}


def check_against_loops(problem, options, implementation):
    arguments = with_nan_where_nothing_is_held(random_arguments(problem))
    out, lse = ragged_paged_attention(
        *arguments, **options, return_lse=True, implementation=implementation
    )
    expected, expected_lse = attention_by_hand(arguments, **options)
    assert_close(out, expected, problem.dtype)
    # A score is a sum of D products of unit normals, each rounded at its own size.
    D = problem.head_dim
    size = D * options.get("sm_scale", D**-0.5) * options.get("k_scale", 1.0)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-6, atol=5e-6 + 1e-7 * size)


def with_nan_where_nothing_is_held(arguments):
    kv_pages, L = np.array(arguments.kv_pages), arguments.kv_pages.shape[1]
    held = np.zeros(kv_pages.shape[:2], bool)
    for s in range(int(arguments.num_seqs[0])):
        position = np.arange(int(arguments.kv_lens[s]))
        held[np.asarray(arguments.page_indices)[s, position // L], position % L] = True
    kv_pages[~held] = np.nan
    return arguments._replace(kv_pages=jnp.asarray(kv_pages))


@pytest.mark.usefixtures("unoptimized")
@settings(
    max_examples=settings.default.max_examples // 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a setting, the same every time
)
@given(problem=problems(), options=options())
def test_matches_float64_loops_for_any_shape(problem, options):
    for implementation in ("reference", "xla"):  # which take a second to compile
        check_against_loops(problem, options, implementation)


@settings(
    max_examples=settings.default.max_examples // 4,  # a program each
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a name, the same every time
)
@given(problem=problems(), options=options())
def test_the_cpu_kernel_matches_float64_loops_for_any_shape(cpu, problem, options):
    check_against_loops(problem, options, cpu)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_small_numbers_are_not_lost(cpu, dtype):
    """XLA flushes denormal numbers to zero; a kernel that lets it loses float16 below 6e-5."""
    arguments = random_arguments(replace(CHECKED[1], dtype=dtype))
    arguments = arguments._replace(q=(arguments.q * 1e-6).astype(dtype))
    assert float(jnp.abs(arguments.q).max()) < 6e-5
    _, lse = ragged_paged_attention(*arguments, sm_scale=1e5, return_lse=True, implementation=cpu)
    np.testing.assert_allclose(lse, attention_by_hand(arguments, sm_scale=1e5)[1], atol=5e-6)


def test_rows_of_no_sequence_are_zeros(implementation):
    arguments = random_arguments(CHECKED[1])
    out = np.asarray(ragged_paged_attention(*arguments, implementation=implementation))
    assert not out[57:].any()  # the sequences have 57 rows of 64
    nothing = arguments._replace(num_seqs=jnp.zeros(1, jnp.int32))
    assert not np.any(ragged_paged_attention(*nothing, implementation=implementation))


def test_what_is_not_held_cannot_show(implementation):
    """Neither padding of the metadata nor what pages hold after a sequence's end is used."""
    arguments = random_arguments(CHECKED[1])
    kv_pages, page_indices = np.array(arguments.kv_pages), np.array(arguments.page_indices)
    kv_lens, cu_q_lens = np.array(arguments.kv_lens), np.array(arguments.cu_q_lens)
    held = np.zeros(kv_pages.shape[:2], bool)
    for s in range(5):
        for position in range(kv_lens[s]):
            held[page_indices[s, position // 16], position % 16] = True
        page_indices[s, -(-kv_lens[s] // 16) :] = [-1, 10**6, -(10**6)][s % 3]
    kv_pages[~held] = np.nan
    page_indices[5:], kv_lens[5:], cu_q_lens[6:] = 10**6, 10**6, -7
    spoilt = Arguments(arguments.q, kv_pages, kv_lens, page_indices, cu_q_lens, arguments.num_seqs)
    np.testing.assert_array_equal(
        ragged_paged_attention(*map(jnp.asarray, spoilt), implementation=implementation),
        ragged_paged_attention(*arguments, implementation=implementation),
    )


def test_has_no_derivative_and_says_so(implementation):
    q, *others = random_arguments(CHECKED[0])

    def total(q):
        return ragged_paged_attention(q, *others, implementation=implementation).sum()

    with pytest.raises(NotImplementedError, match="for inference"):
        jax.grad(total)(q)


@pytest.mark.usefixtures("unoptimized")
def test_a_named_implementation_is_never_replaced(implementation, monkeypatch):
    api = importlib.import_module("rlboost_kernels.attention.attention_api")
    for other in {"reference", "xla", "cpu"} - {implementation}:
        monkeypatch.delitem(api._PROGRAMS, other)
    arguments = random_arguments(CHECKED[0], seed=1)
    # A scale of its own, so that the program is traced here and not taken from a cache.
    ragged_paged_attention(*arguments, sm_scale=0.123, implementation=implementation)


@pytest.mark.usefixtures("unoptimized")
def test_over_a_leading_axis(implementation):
    problem, arguments = CHECKED[1], random_arguments(CHECKED[1])
    q = jnp.stack([arguments.q, random_arguments(problem, seed=1).q])

    def attend(q):
        return ragged_paged_attention(q, *arguments[1:], implementation=implementation)

    np.testing.assert_allclose(jax.vmap(attend)(q), jnp.stack([*map(attend, q)]), atol=3e-6)


@pytest.mark.usefixtures("unoptimized")
def test_inside_a_loop(implementation):
    arguments = random_arguments(CHECKED[1])

    def step(q, _):
        return ragged_paged_attention(q, *arguments[1:], implementation=implementation), None

    looped, _ = jax.lax.scan(step, arguments.q, length=2)
    np.testing.assert_allclose(looped, step(step(arguments.q, 0)[0], 0)[0], atol=3e-6)
