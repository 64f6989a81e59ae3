"""The Mosaic kernels, interpreted on CPU: float64 loops, bits of rows, and lowering for CUDA."""

import pathlib
import re
import runpy
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from rlboost_kernels import ragged_paged_attention
from rlboost_kernels.attention import attention_mosaic_gpu
from rlboost_kernels.attention.attention_api import choose_attention
from rlboost_kernels.problems import Problem, random_arguments

interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"),
    reason=f"jax {jax.__version__} has no interpreter for Mosaic GPU; 0.11 and later do",
)
ALL_OPTIONS = {
    "sm_scale": 0.2,
    "sliding_window": 37,
    "soft_cap": 3.0,
    "k_scale": 0.7,
    "v_scale": 2.5,
}
_ragged = partial(Problem, q_lens=(1, 5, 0, 1), num_rows=8, num_slots=6)
CASES = (
    (_ragged(name="two splits", kv_lens=(90, 40, 5, 600), num_query_heads=2, num_key_heads=1,
             head_dim=64, page_size=64, dtype="bfloat16"), {}),
    (_ragged(name="two key heads", kv_lens=(90, 40, 5, 1), num_query_heads=6, num_key_heads=2,
             head_dim=128, page_size=16, dtype="bfloat16"), ALL_OPTIONS),
    (_ragged(name="large pages", kv_lens=(130, 40, 5, 60), num_query_heads=1, num_key_heads=1,
             head_dim=256, page_size=128, dtype="float16"), {"sliding_window": 70}),
)  # fmt: skip
attend = partial(ragged_paged_attention, implementation="mosaic_gpu", interpret=True)


@interpreted
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # NaN, which is masked
@pytest.mark.parametrize(("problem", "options"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_matches_float64_loops(problem, options, assert_matches_loops):
    assert_matches_loops(attend, problem, options)


@interpreted
def test_agrees_with_the_definition():
    arguments = random_arguments(CASES[1][0])
    expected = ragged_paged_attention(*arguments, implementation="reference").astype(jnp.float32)
    error = np.linalg.norm(attend(*arguments).astype(jnp.float32) - expected)
    assert error <= 4e-3 * np.linalg.norm(expected)


@interpreted
@pytest.mark.parametrize("options", [{}, {"sliding_window": 90, "soft_cap": 3.0}], ids=str)
def test_companions_slots_pages_and_chunks_cannot_show(options, assert_same_bits):
    chunks = ((61, 66, 2), (510, 514, 1))  # over the border of a block and of a split
    shape = {"num_rows": 8, "longest": 560, "head_dim": 64, "page_size": 16}
    assert_same_bits(partial(attend, **options), dtype="bfloat16", chunks=chunks, **shape)


@interpreted
def test_in_a_compiled_loop(assert_runs_in_a_loop):
    arguments = random_arguments(replace(CASES[0][0], kv_lens=(90, 40, 5, 60)))

    def step(q):
        return attend(q, *arguments[1:])

    assert_runs_in_a_loop(step, arguments.q)


@pytest.mark.parametrize(
    ("head_dim", "page_size", "heads", "dtype"),
    [(128, 64, (16, 8), "bfloat16"), (64, 16, (14, 2), "float16"), (256, 128, (64, 1), "bfloat16")],
)
def test_lowers_for_cuda(head_dim, page_size, heads, dtype, decode_arguments):
    shapes = decode_arguments(heads=heads, head_dim=head_dim, page_size=page_size, dtype=dtype)
    traced = jax.jit(partial(attention_mosaic_gpu.attend, **ALL_OPTIONS, return_lse=True)).trace(
        *shapes
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 2


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_lowers_for_cuda_whatever_the_rows(rows, decode_arguments):
    """What is copied to shared memory in one piece comes from multiples of eight rows."""
    shapes = decode_arguments(heads=(6, 2), head_dim=128, page_size=64, dtype="bfloat16")
    shapes = shapes._replace(q=jax.ShapeDtypeStruct((rows, 6, 128), "bfloat16"))
    traced = jax.jit(partial(attention_mosaic_gpu.attend, **ALL_OPTIONS, return_lse=False)).trace(
        *shapes
    )
    traced.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "it is for GPU and this is cpu; interpret=True tries it out"),
        ({"dtype": "float32"}, "q has type float32; it takes bfloat16 and float16"),
        ({"kv_dtype": "float8_e4m3fn"}, "kv_pages has type float8_e4m3fn; it takes bfloat16 and f"),
        ({"head_dim": 32}, "head dim is 32; it takes 64, 128, 256"),
        ({"page_size": 48}, "page size is 48; it takes 8, 16, 32 and multiples of 64"),
    ],
)
def test_says_why_it_cannot_run(change, message):
    arguments = random_arguments(replace(CASES[0][0], **change))
    with pytest.raises(NotImplementedError, match=message):
        attend(*arguments, interpret=False)


def test_the_choice_needs_shapes_and_types_only():
    q, half = (jax.ShapeDtypeStruct((1, 1, 64), t) for t in ("bfloat16", "float16"))
    pages = jax.ShapeDtypeStruct((1, 64, 2, 64), "float16")
    assert attention_mosaic_gpu.why_not(half, pages) == ""
    assert attention_mosaic_gpu.why_not(q, pages).startswith(
        "q has type bfloat16 and kv_pages float16"
    )


@pytest.mark.parametrize(
    ("kind", "capability", "refused"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", ""),
        ("NVIDIA A100-SXM4-40GB", "8.0", "NVIDIA A100-SXM4-40GB has compute capability 8.0"),
        ("NVIDIA B200", "10.0", "NVIDIA B200 has compute capability 10.0; it takes 9.x (Hopper)"),
        ("AMD Instinct MI300X", "gfx942", "AMD Instinct MI300X has compute capability gfx942"),
        ("AMD Radeon", None, "AMD Radeon has compute capability none"),
    ],
)
def test_it_asks_for_hopper(kind, capability, refused, monkeypatch):
    gpu = SimpleNamespace(device_kind=kind)
    if capability is not None:
        gpu.compute_capability = capability
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    q = jax.ShapeDtypeStruct((1, 1, 64), "bfloat16")
    pages = jax.ShapeDtypeStruct((1, 64, 2, 64), "bfloat16")
    if not refused:
        assert choose_attention("mosaic_gpu", q, pages) == "mosaic_gpu"
        return
    with pytest.raises(NotImplementedError, match=re.escape(refused)):
        choose_attention("mosaic_gpu", q, pages)


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_a_jax_without_the_backend_is_a_reason(name, monkeypatch):
    monkeypatch.delattr(f"jax.experimental.pallas.{name}", raising=False)  # not imported yet
    monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{name}", None)
    folder = pathlib.Path(attention_mosaic_gpu.__file__).parent
    why_not = runpy.run_path(str(folder / f"attention_{name}.py"))["why_not"]
    arrays = random_arguments(CASES[0][0])[:2]
    assert why_not(*arrays).startswith("this jax has no Pallas")
