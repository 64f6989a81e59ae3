import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.parameter_sharding import make_mesh, param_shardings
from rlboost_jax.models.params import (
    abstract_params,
    flatten_params,
    init_params,
    params_digest,
    unflatten_params,
    unstack_layers,
)


def same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    return all(
        (a == b).all() for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_counts_match_the_architecture(small_model):
    V, E, L, H, K, D, F = 24, 16, 2, 4, 2, 8, 32
    layer = E * D * (2 * H + 2 * K) + 3 * E * F + 2 * E + 2 * D
    assert size(init_params(small_model(), 0)) == 2 * V * E + E + L * layer
    tied = init_params(small_model(tie_embeddings=True, qk_norm=False), 0)
    assert size(tied) == V * E + E + L * (layer - 2 * D)


def test_names_and_shapes(small_model):
    leaves = flatten_params(init_params(small_model(), 0))
    assert list(leaves) == sorted(leaves)
    assert leaves["layers.attention.query.kernel"].shape == (2, 16, 32)
    assert leaves["layers.mlp.down.kernel"].shape == (2, 32, 16)
    assert {leaf.dtype for leaf in leaves.values()} == {jnp.dtype("float32")}


def test_flat_and_back(small_model):
    params = init_params(small_model(), 0)
    assert same(unflatten_params(flatten_params(params)), params)


def test_abstract_params_describe_the_real_ones(small_model):
    params = init_params(small_model(), 0)
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract_params(small_model()))
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)


def test_layers_start_different_and_unstack_in_order(small_model):
    params = init_params(small_model(), 0)
    first, second = unstack_layers(params)["layers"]
    assert not same(first["attention"], second["attention"])
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
    assert same(stacked, params["layers"])


def test_the_seed_decides_and_the_placement_does_not(small_model):
    config = small_model()
    params = init_params(config, 0)
    placed = init_params(config, 0, shardings=param_shardings(config, make_mesh((1, 1, 1))))
    assert same(params, placed)
    assert not same(params["embedding"], init_params(config, 1)["embedding"])


def test_values_have_the_spread_that_the_modules_declare(small_model):
    leaves = flatten_params(init_params(small_model(vocab_size=500, num_layers=20), 0))
    for name, std in {
        "embedding.table": 0.5,
        "head.kernel": 0.02,
        "layers.attention.query.kernel": 16**-0.5,
        "layers.mlp.down.kernel": 32**-0.5,
    }.items():
        np.testing.assert_allclose(leaves[name].std(), std, rtol=0.05)
        np.testing.assert_allclose(leaves[name].mean(), 0, atol=0.05 * std)
    assert (leaves["layers.mlp_norm.scale"] == 1).all()


def test_digest_is_of_names_dtypes_shapes_and_every_bit():
    params = {"a": {"b": np.arange(4, dtype=np.float32)}, "c": np.zeros((2, 2), np.float32)}
    digest = params_digest(params)
    assert digest == params_digest({"c": params["c"], "a": params["a"]})
    assert digest == params_digest(jax.tree.map(jnp.asarray, params))
    flipped = params["a"]["b"].copy()
    flipped.view(np.uint32)[1] ^= 1
    others = [
        {**params, "a": {"b": flipped}},
        {**params, "a": {"x": params["a"]["b"]}},
        {**params, "c": np.zeros(4, np.float32)},
        {**params, "c": np.zeros((2, 2), np.int32)},
        {**params, "c": -params["c"]},  # minus zero is another number
    ]
    assert len({digest, *map(params_digest, others)}) == 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_digest_takes_every_dtype(dtype):
    assert len(params_digest({"a": jnp.ones(3, dtype)})) == 64
