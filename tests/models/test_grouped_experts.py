"""Experts by products of groups of rows, against a loop over choices in NumPy float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from rlboost_kernels.grouped.layout import ROWS, room

from rlboost_jax.models.forward import apply_layer
from rlboost_jax.models.grouped_experts import How, Matrices, added_by_experts
from rlboost_jax.models.params import init_params, unstack_layers
from rlboost_jax.settings.memory_estimates import EXPERT_TILE, expert_rows

N, A, X, E, F = 60, 3, 5, 128, 128
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}  # of the relative norm
EACH = [
    ("reference", "float32"),
    ("blocks", "float32"),
    ("blocks", "bfloat16"),
    pytest.param(
        "mosaic_gpu",
        "bfloat16",
        marks=pytest.mark.skipif(
            not hasattr(plgpu, "InterpretGPUParams"),
            reason=f"jax {jax.__version__} has no interpreter for Mosaic GPU; 0.11 and later do",
        ),
    ),
]


def arguments(dtype):
    """The last expert is chosen by nobody."""
    rng = np.random.default_rng(0)
    chosen = np.argsort(rng.random((N, X - 1)), axis=1)[:, :A]
    sizes = ((N, E), (X, E, F), (X, E, F), (X, F, E), (N, E))
    x, gate, up, down, upstream = (rng.standard_normal(size) for size in sizes)
    arrays = (x, gate * E**-0.5, up * E**-0.5, down * F**-0.5, upstream)
    x, gate, up, down, upstream = (jnp.asarray(array, dtype) for array in arrays)
    weights = jnp.asarray(rng.random((N, A)), jnp.float32)
    return x, jnp.asarray(chosen, jnp.int32), weights, Matrices(gate, up, down), upstream


def by_hand(x, chosen, weights, matrices, upstream):
    """Outputs, and gradients of their product with `upstream`."""
    x, chosen, weights, upstream = (
        np.asarray(array, np.float64) for array in (x, chosen, weights, upstream)
    )
    matrices = Matrices(*(np.asarray(matrix, np.float64) for matrix in matrices))
    out, to_x, to_weights = np.zeros(x.shape), np.zeros(x.shape), np.zeros(weights.shape)
    to_matrices = Matrices(*(np.zeros(matrix.shape) for matrix in matrices))
    for n in range(len(x)):
        for a, e in enumerate(chosen[n].astype(int)):
            gate, up, down = (matrix[e] for matrix in matrices)
            left, right = x[n] @ gate, x[n] @ up
            sigmoid = 1 / (1 + np.exp(-left))
            hidden = left * sigmoid * right
            out[n] += weights[n, a] * (hidden @ down)
            to_weights[n, a] = hidden @ down @ upstream[n]
            to_hidden = weights[n, a] * (down @ upstream[n])
            to_left = to_hidden * right * (sigmoid + left * sigmoid * (1 - sigmoid))
            to_right = to_hidden * left * sigmoid
            to_x[n] += gate @ to_left + up @ to_right
            to_matrices.gate[e] += np.outer(x[n], to_left)
            to_matrices.up[e] += np.outer(x[n], to_right)
            to_matrices.down[e] += weights[n, a] * np.outer(hidden, upstream[n])
    return out, (to_x, to_weights, to_matrices)


def value_and_gradients(how, x, chosen, weights, matrices, upstream):
    out, pull = jax.vjp(
        lambda x, weights, matrices: added_by_experts(how, x, chosen, weights, matrices),
        x,
        weights,
        matrices,
    )
    return out, pull(upstream.astype(jnp.float32))


@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_outputs_and_gradients_are_those_of_a_loop(name, dtype):
    given = arguments(dtype)
    how = How(None, jax.nn.silu, name, interpret=name == "mosaic_gpu")
    found = jax.jit(value_and_gradients, static_argnums=0)(how, *given)
    for ours, expected in zip(
        jax.tree.leaves(found), jax.tree.leaves(by_hand(*given)), strict=True
    ):
        error = np.linalg.norm(np.asarray(ours, np.float64) - expected)
        assert error <= TOLERANCES[dtype] * np.linalg.norm(expected)
    assert found[1][0].dtype == given[0].dtype and found[0].dtype == jnp.float32
    assert not found[1][2].gate[-1].any()


def test_a_layer_takes_the_implementation_that_is_named(small_model):
    model = small_model(num_experts=X, experts_per_token=A, expert_dim=16)
    layer = unstack_layers(init_params(model, 0))["layers"][0]
    layer = jax.tree.map(lambda leaf: 3 * leaf, layer)
    x = jax.random.normal(jax.random.key(0), (N, model.embed_dim))

    @partial(jax.jit, static_argnums=0)
    def run(name):
        at = jnp.zeros(N, jnp.int32)
        return apply_layer(model, layer, x, at, lambda q, k, v: 0 * q, grouped=name)

    (sorted_, taken), (grouped, also_taken) = run(None), run("blocks")
    np.testing.assert_array_equal(taken, also_taken)
    assert np.linalg.norm(grouped - sorted_) <= 1e-6 * np.linalg.norm(sorted_)
    assert np.abs(sorted_ - x).max() > 0.1
    with pytest.raises(NotImplementedError, match="float32"):
        run("mosaic_gpu")


def test_a_share_is_what_a_device_has_on_average_and_a_quarter():
    assert EXPERT_TILE == ROWS
    for choices in (0, 1, 100, 999):
        assert expert_rows(choices, 7, 1) == room(choices, 7)
    assert expert_rows(1024, 8, 1) == 1024 + 8 * 128 - 128
    assert expert_rows(110_592, 32, 4) == 37_120  # 29,696 with half a tile for each expert
    assert expert_rows(8, 32, 4) == 8 * 128  # which is enough for any 8


def test_over_a_mesh_with_all_choices_on_one_device(run_with_devices):
    """Balanced, and so that one of two devices has all choices and needs two shares; gradients,
    which take what the outputs do. 15 experts cannot be shared, and all devices have all."""
    source = """
import jax, jax.numpy as jnp, numpy as np
from rlboost_jax.models.experts import _sorted
from rlboost_jax.settings.memory_estimates import expert_rows
from rlboost_jax.models.grouped_experts import How, Matrices, added_by_experts, room
from rlboost_jax.models.parameter_sharding import make_mesh

N, A, E, F = 1600, 4, 16, 8
rng = np.random.default_rng(0)
x, weights = jnp.asarray(rng.normal(size=(N, E)), jnp.float32), jnp.asarray(rng.random((N, A)))
upstream = jnp.asarray(rng.normal(size=(N, E)), jnp.float32)
how = How(make_mesh((2, 2, 2)), jax.nn.silu, "blocks")
assert expert_rows(1600, 8, 2) < 4 * 512 < room(1600, 8)  # of 400 tokens

def plain(x, chosen, weights, stacks):
    return (_sorted(x, chosen, weights, *stacks, activation=jax.nn.silu) * upstream).sum()

def grouped(x, chosen, weights, stacks):
    return (added_by_experts(how, x, chosen, weights, Matrices(*stacks)) * upstream).sum()

for X in (16, 15):
    sizes = ((X, E, F), (X, E, F), (X, F, E))
    stacks = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes]
    balanced = np.argsort(rng.random((N, X)), axis=1)[:, :A]
    for chosen in (balanced, np.tile(np.arange(8, 12), (N, 1))):
        given = (x, jnp.asarray(chosen, jnp.int32), weights, stacks)
        found, expected = (
            jax.jit(jax.grad(run, argnums=(0, 2, 3)))(*given) for run in (grouped, plain)
        )
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)
print("same")
"""
    assert run_with_devices(source, 8).strip() == "same"
