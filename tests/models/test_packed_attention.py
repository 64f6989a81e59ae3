"""Fused attention on meshes, and what kernels are given: `triton` interpreted, cuDNN never run."""

from dataclasses import replace
from itertools import groupby

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from configs import base
from rlboost_jax.models import cudnn_attention
from rlboost_jax.models.attention import chosen, row_attention
from rlboost_jax.models.chunked_attention import Form
from rlboost_jax.models.cudnn_attention import table_of
from rlboost_jax.models.forward import REMAT_POLICIES
from rlboost_jax.models.packed_attention import SAVED, fused_attention, why_not
from rlboost_jax.models.parameter_sharding import AXES
from rlboost_jax.settings.config_loading import run_config

B, T, H, K, D = 2, 24, 4, 2, 16
SEGMENTS = np.array([[1] * 9 + [2] * 4 + [3] * 8 + [0] * 3, [1] * 20 + [2] * 4], np.int32)
MODEL = replace(run_config(base.get_config()).model, head_dim=D)
CAPPED = replace(MODEL, sliding_window=5, attention_pattern="LG", attention_soft_cap=2.0)
GROUPED = replace(MODEL, dtype="bfloat16", num_query_heads=8, num_key_heads=2)


ON_MESHES = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rlboost_jax.models.attention import attend_dense
from rlboost_jax.models.chunked_attention import Form
from rlboost_jax.models.packed_attention import fused_attention
from rlboost_jax.models.parameter_sharding import BATCH, make_mesh
from tests.models.test_packed_attention import B, CAPPED, D, H, K, MODEL, SEGMENTS, T

keys = jax.random.split(jax.random.key(0), 4)
heads = [jax.random.normal(key, (B * T, n, D)) for key, n in zip(keys, (H, K, K, H))]
segments = jnp.asarray(SEGMENTS)

def values_and_gradients(attend, form, heads, local):
    *qkv, upstream = heads
    out, pull_back = jax.vjp(lambda q, k, v: attend(form, q, k, v, local), *qkv)
    return out, *pull_back(upstream)

def dense(form, q, k, v, local):
    return attend_dense(form, q, k, v, segments, local)

for shape, config, local in (
    ((1, 1, 1), MODEL, None), ((2, 1, 2), CAPPED, True), ((1, 1, 4), CAPPED, False)
):
    form = Form(0.3, config.attention_soft_cap or None, config.sliding_window)
    local = None if local is None else jnp.asarray(local)
    expected = jax.jit(partial(values_and_gradients, dense, form))(heads, local)
    mesh = make_mesh(shape)
    places = [PartitionSpec(BATCH, "tensor" if n % shape[2] == 0 else None) for n in (H, K, K, H)]
    placed = [jax.device_put(x, NamedSharding(mesh, p)) for x, p in zip(heads, places)]
    attend = fused_attention("triton", config.sliding_window, segments, mesh, interpret=True)
    program = jax.jit(partial(values_and_gradients, attend, form)).lower(placed, local).compile()
    for found, one in zip(program(placed, local), expected):
        np.testing.assert_allclose(found, one, atol=1e-5)
    text = program.as_text()
    print(text.count(" all-gather("), "all-reduce" in text)
"""


def test_a_mesh_computes_what_the_dense_form_does(run_with_devices):
    """One device; rows and heads divided; more devices than key heads, with a soft cap and a window
    where they are divided. Nothing is exchanged but two gradients, those of keys and of values,
    where several devices have the same heads."""
    assert run_with_devices(ON_MESHES, 4).splitlines() == ["0 False", "0 False", "2 True"]


@pytest.mark.parametrize(("remat", "times"), [("full", 0), ("attention", 2), ("dots", 2)])
def test_what_a_kernel_returns_is_kept(remat, times, capsys):
    """The result, and the logarithm of the sums."""
    attend = fused_attention("triton", 0, jnp.asarray(SEGMENTS), None, interpret=True)

    def layer(q, k, v):
        return attend(Form(0.3, None, 0), q, k, v, None).sum()

    qkv = [jnp.ones((B * T, n, D)) for n in (H, K, K)]
    kept = jax.checkpoint(layer, policy=REMAT_POLICIES[remat])
    jax.ad_checkpoint.print_saved_residuals(kept, *qkv)
    assert capsys.readouterr().out.count(f"named '{SAVED}'") == times


@pytest.mark.parametrize("most", [3, 4, 7])
def test_a_table_of_sequences(most):
    segments = np.stack([np.repeat([5, 2, 9], [1, 20, 3]), np.repeat([1, 2, 1], [8, 8, 8])])
    table = table_of(jnp.asarray(segments), most)
    for b, row in enumerate(segments):
        lengths = [len(list(tokens)) for _, tokens in groupby(row)]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        assert table.lengths[b].tolist() == lengths + [-1] * (most - 3)
        assert table.starts[b].tolist() == starts + [-1] * (most - 2)


def test_a_row_of_200_sequences_goes_beyond_the_table():
    segments = jnp.arange(200)[None]
    table = table_of(segments, cudnn_attention.MOST_SEQUENCES)
    assert table.lengths.shape == (1, 64) and (np.asarray(table.lengths) == 1).all()
    one = table_of(jnp.zeros((1, 200), jnp.int32), 64)
    assert one.lengths[0, :2].tolist() == [200, -1] and one.starts[0, :2].tolist() == [0, -1]


def test_auto_takes_a_kernel_on_gpus_for_models_that_it_takes():
    mesh = AbstractMesh((1, 1, 4), AXES)
    assert chosen(GROUPED, "auto", 4096, mesh) == "chunked"
    assert chosen(GROUPED, "auto", 4096, mesh, "gpu") == "triton"
    assert chosen(GROUPED, "auto", 256, mesh, "gpu") == "dense"
    assert chosen(GROUPED, "cudnn", 256, mesh, "gpu") == "cudnn"
    assert chosen(replace(GROUPED, dtype="float32"), "auto", 4096, mesh, "gpu") == "chunked"
    assert chosen(replace(GROUPED, head_dim=80), "auto", 4096, mesh, "gpu") == "chunked"
    assert chosen(replace(GROUPED, num_query_heads=6), "auto", 4096, mesh, "gpu") == "chunked"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"attention_soft_cap": 50.0}, "no soft caps"),
        ({"sliding_window": 9, "attention_pattern": "LG"}, "not used for windows"),
        ({"head_dim": 256}, "up to 128"),
        ({"dtype": "float32"}, "float32"),
    ],
)
def test_models_that_cudnn_is_not_for(changes, reason):
    found = why_not("cudnn", replace(GROUPED, **changes), None, "gpu")
    assert reason in found and bool(reason) == bool(found)


def test_a_mesh_that_cannot_divide_the_heads_is_named():
    mesh = AbstractMesh((1, 1, 3), AXES)
    assert why_not("triton", GROUPED, mesh, "gpu") == (
        f"{GROUPED.num_query_heads} query and {GROUPED.num_key_heads} key heads cannot be divided "
        "by 3 devices, which learner.mesh has along tensor"
    )


def test_a_kernel_that_is_named_is_not_replaced():
    with pytest.raises(NotImplementedError, match=r"'triton': triton is for GPUs and this is cpu"):
        row_attention(GROUPED, jnp.asarray(SEGMENTS), "triton")
