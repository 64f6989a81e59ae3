"""The Triton kernels, interpreted on CPU: float64 loops, bits of rows, and lowering for CUDA."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import ragged_paged_attention, update_kv_pages
from rlboost_kernels.attention import attention_triton
from rlboost_kernels.attention.attention_api import choose_attention
from rlboost_kernels.problems import Problem, random_arguments

pytestmark = pytest.mark.usefixtures("unoptimized")

ALL_OPTIONS = {
    "sm_scale": 0.2,
    "sliding_window": 37,
    "soft_cap": 3.0,
    "k_scale": 0.7,
    "v_scale": 2.5,
}
_ragged = partial(Problem, q_lens=(1, 9, 1, 0, 4), num_rows=20, num_slots=7)
CASES = (
    (_ragged(name="pairs", kv_lens=(90, 40, 1, 5, 600), num_query_heads=4, num_key_heads=2,
             head_dim=64, page_size=64, dtype="bfloat16"), {}),
    (_ragged(name="groups of 7", kv_lens=(90, 40, 1, 5, 200), num_query_heads=7, num_key_heads=1,
             head_dim=128, page_size=16, dtype="bfloat16"), ALL_OPTIONS),
    (_ragged(name="float32", kv_lens=(90, 40, 1, 5, 600), num_query_heads=4, num_key_heads=2,
             head_dim=32, page_size=24, dtype="float32"), {"sliding_window": 100}),
    (_ragged(name="more heads than rows of a tile", kv_lens=(9, 40, 1, 5, 66), num_query_heads=34,
             num_key_heads=1, head_dim=16, page_size=128, dtype="float16"), {"soft_cap": 2.0}),
    (_ragged(name="8 bits", kv_lens=(90, 40, 1, 5, 600), num_query_heads=4, num_key_heads=2,
             head_dim=64, page_size=64, dtype="bfloat16", kv_dtype="float8_e4m3fn"), ALL_OPTIONS),
    (_ragged(name="8 bits to 16", kv_lens=(90, 40, 1, 5, 66), num_query_heads=4, num_key_heads=1,
             head_dim=32, page_size=16, dtype="float16", kv_dtype="float8_e5m2"), {}),
    (_ragged(name="8 bits to 32", kv_lens=(90, 40, 1, 5, 66), num_query_heads=4, num_key_heads=2,
             head_dim=32, page_size=16, dtype="float32", kv_dtype="float8_e4m3fn"), {}),
)  # fmt: skip
attend = partial(ragged_paged_attention, implementation="triton", interpret=True)


@pytest.mark.parametrize(("problem", "options"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_matches_float64_loops(problem, options, assert_matches_loops):
    assert_matches_loops(attend, problem, options)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "options"),
    [
        ("bfloat16", None, {}),
        ("float32", None, {"sliding_window": 90, "soft_cap": 3.0}),
        ("bfloat16", "float8_e4m3fn", {"sliding_window": 90}),
    ],
)
def test_companions_slots_pages_and_chunks_cannot_show(dtype, kv_dtype, options, assert_same_bits):
    chunks = ((0, 33, 7), (50, 77, 11), (500, 530, 9), (559, 560, 39))
    shape = {"num_rows": 40, "longest": 560, "head_dim": 32, "page_size": 16, "kv_dtype": kv_dtype}
    assert_same_bits(partial(attend, **options), dtype=dtype, chunks=chunks, **shape)


def test_in_a_compiled_loop_and_over_a_leading_axis(assert_runs_in_a_loop):
    arguments = random_arguments(CASES[1][0])

    def step(q):
        return attend(q, *arguments[1:])

    assert_runs_in_a_loop(step, arguments.q)
    pair = jnp.stack([arguments.q, -arguments.q])
    np.testing.assert_array_equal(jax.vmap(step)(pair), jnp.stack([*map(step, pair)]))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("head_dim", "page_size", "heads", "dtype", "kv_dtype"),
    [
        (128, 64, (16, 8), "bfloat16", ""),
        (64, 16, (14, 2), "float16", ""),
        (32, 24, (4, 4), "float32", ""),
        (128, 64, (16, 8), "bfloat16", "float8_e4m3fn"),
        (64, 16, (14, 2), "float16", "float8_e5m2"),
        (64, 16, (4, 4), "float32", "float8_e4m3fn"),
    ],
)
def test_lowers_for_cuda(head_dim, page_size, heads, dtype, kv_dtype, an_h100, decode_arguments):
    shapes = decode_arguments(
        heads=heads, head_dim=head_dim, page_size=page_size, dtype=dtype, kv_dtype=kv_dtype
    )
    options = {**ALL_OPTIONS, "return_lse": True}
    with an_h100:
        traced = jax.jit(partial(attention_triton.attend, **options)).trace(*shapes)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") == 2


def test_says_why_it_cannot_run():
    (problem, _), *_ = CASES
    arguments = random_arguments(problem)
    with pytest.raises(NotImplementedError, match="it is for GPU and this is cpu"):
        attend(*arguments, interpret=False)
    with pytest.raises(NotImplementedError, match="q has type float32 and kv_pages bfloat16"):
        attend(*arguments._replace(q=arguments.q.astype(jnp.float32)))
    narrow = random_arguments(replace(problem, head_dim=48))
    with pytest.raises(NotImplementedError, match="head dim is 48; it takes 16, 32"):
        attend(*narrow)


def test_named_early_for_shapes_and_a_platform():
    q, kv_pages, *_ = random_arguments(CASES[0][0])
    assert choose_attention("triton", q, kv_pages, platform="gpu") == "triton"
    with pytest.raises(NotImplementedError, match="it is for GPU and this is cpu"):
        choose_attention("triton", q, kv_pages, platform="cpu")
    with pytest.raises(NotImplementedError, match="kv_pages float32; it takes equal ones"):
        choose_attention("triton", q, kv_pages.astype("float32"), platform="gpu")


def test_it_writes_no_pages():
    kv_pages = jnp.zeros((1, 16, 2, 32))
    k = jnp.zeros((1, 1, 32))
    with pytest.raises(NotImplementedError, match="'triton' is not available here"):
        update_kv_pages(kv_pages, k, k, jnp.zeros(1, jnp.int32), implementation="triton")
