"""The kernels for GPU with their heads shared out among devices by `jax.shard_map`."""

import os
import subprocess
import sys
from functools import partial

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from rlboost_kernels.attention import attention_mosaic_gpu, attention_triton

DEVICES = 2
OPTIONS = {
    "sm_scale": 0.2,
    "sliding_window": 37,
    "soft_cap": 3.0,
    "k_scale": 0.7,
    "v_scale": 2.5,
    "return_lse": True,
}


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("attend", "call", "own_pool"),
    [
        (attention_triton.attend, "xla.gpu.triton", "x64x8x128xbf16>"),
        (attention_mosaic_gpu.attend, "stablehlo.custom_call @mosaic_gpu", "x64x1024xbf16>"),
    ],
    ids=["triton", "mosaic_gpu"],
)
def test_lowers_for_cuda(attend, call, own_pool, an_h100, decode_arguments):
    """To a kernel that is given the keys and values of half of the heads."""
    with an_h100:
        one = jax.sharding.get_abstract_mesh()
    known = {} if one.empty else {"abstract_device": one.abstract_device}
    mesh = AbstractMesh((DEVICES,), ("heads",), axis_types=(AxisType.Auto,), **known)
    rows, pool = P(None, "heads"), P(None, None, "heads")
    specs = (rows, pool, P(), P(), P(), P())
    sharded = jax.shard_map(
        partial(attend, **OPTIONS), mesh=mesh, in_specs=specs, out_specs=(rows, rows)
    )
    shapes = decode_arguments(heads=(16, 8), head_dim=128, page_size=64, dtype="bfloat16")
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(sharded).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    first, _ = (line for line in text.splitlines() if call in line)
    assert own_pool in first


PROGRAM = """
import jax, numpy as np
from functools import partial
from jax.sharding import AxisType, PartitionSpec as P
from rlboost_kernels import ragged_paged_attention
from rlboost_kernels.problems import Problem, random_arguments

problem = Problem(name="", q_lens=(1, 3), kv_lens=(40, 20), num_query_heads=4, num_key_heads=2,
                  head_dim=32, page_size=16, num_rows=8, num_slots=2)
mesh = jax.make_mesh((2,), ("heads",), axis_types=(AxisType.Auto,))
rows, pool = P(None, "heads"), P(None, None, "heads")
attend = partial(ragged_paged_attention, implementation="triton", interpret=True)
sharded = jax.shard_map(attend, mesh=mesh, in_specs=(rows, pool, P(), P(), P(), P()),
                        out_specs=rows, check_vma=False)
arguments = random_arguments(problem)
got = jax.jit(sharded)(*arguments)
assert len(got.sharding.device_set) == 2
expected = ragged_paged_attention(*arguments, implementation="reference")
np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
print("equal")
"""


def test_triton_interpreted_on_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=1200,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "True",
            "XLA_FLAGS": flags,
        },
    )
    assert done.stdout == "equal\n", done.stderr
