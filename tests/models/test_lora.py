"""Adapters against float64 NumPy, against the model without, and against what they start at."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.adapters import (
    base_model,
    is_adapter,
    joined,
    merged_layer,
    merged_params,
    trained_part,
)
from rlboost_jax.models.forward import hidden_states_and_experts
from rlboost_jax.models.lora import adapted_product, merged
from rlboost_jax.models.params import (
    abstract_params,
    flatten_params,
    init_params,
    params_digest,
    unflatten_params,
    unstack_layers,
)
from rlboost_jax.settings.memory_estimates import num_adapter_parameters
from rlboost_jax.settings.model_config import ATTENTION_TARGETS, LORA_TARGETS, LoraConfig

SCALE = 1.5


@pytest.fixture
def adapted(small_model):
    """A small model with adapters of rank 3 and all their parameters random: `adapted(alpha=1)`."""

    def build(targets=LORA_TARGETS, **changes):
        lora = LoraConfig(rank=3, alpha=4.5, targets=targets)
        model = small_model(lora=lora, **changes)
        return model, lively(init_params(model, 0))

    return build


def lively(params):
    """Give the parameters adapters that add something."""
    rng = np.random.default_rng(1)
    leaves = flatten_params(params)
    for name, leaf in leaves.items():
        if name.endswith("lora_b"):
            leaves[name] = jnp.asarray(0.3 * rng.standard_normal(leaf.shape, np.float32))
    return unflatten_params(leaves)


def factors():
    rng = np.random.default_rng(0)
    shapes = {"x": (16, 24), "kernel": (24, 40), "a": (24, 3), "b": (3, 40), "g": (16, 40)}
    return {
        name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("by_row", [False, True])
def test_product_and_gradients_are_those_of_the_merged_matrix(by_row):
    given = factors()
    x, kernel, a, b, g = (np.float64(given[name]) for name in ("x", "kernel", "a", "b", "g"))
    arguments = (given["x"], given["kernel"], given["a"], given["b"])
    y, pull_back = jax.vjp(
        lambda x, a, b: adapted_product(x, arguments[1], a, b, SCALE, by_row),
        arguments[0],
        *arguments[2:],
    )
    matrix = kernel + SCALE * a @ b
    by_matrix = x.T @ g  # by the long way
    expected = (x @ matrix, g @ matrix.T, SCALE * by_matrix @ b.T, SCALE * a.T @ by_matrix)
    for found, wanted in zip((y, *pull_back(given["g"])), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_no_gradient_has_the_matrix_s_shape():
    """Neither as a result nor on the way: that is what makes frozen matrices cheap."""
    given = factors()

    def loss(a, b):
        return (adapted_product(given["x"], given["kernel"], a, b, SCALE, False) * given["g"]).sum()

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(given["a"], given["b"]).as_text()
    of_matrix = [line for line in text.splitlines() if "-> tensor<24x40xf32>" in line]
    products = [line for line in of_matrix if "dot_general" in line]
    assert len(products) <= 2, "A · B, forwards and backwards"
    assert all("tensor<24x3xf32>" in line for line in products)


def test_a_matrix_is_rounded_once_and_from_rounded_factors():
    given = factors()
    wide = {
        name: np.asarray(value.astype(jnp.bfloat16), np.float64) for name, value in given.items()
    }
    found = merged(
        given["kernel"].astype(jnp.bfloat16), given["a"], given["b"],
        scale=SCALE, dtype=jnp.bfloat16, by_row=True,
    )  # fmt: skip
    expected = wide["kernel"] + SCALE * wide["a"] @ wide["b"]
    rounded = jnp.asarray(expected.astype(np.float32)).astype(jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    assert (np.asarray(found) == np.asarray(rounded)).mean() > 0.99  # a tie may go either way


def test_adapters_are_where_they_are_wanted_and_counted(adapted):
    model, params = adapted(targets=("q_proj", "down_proj"), attention_bias=True)
    names = {name for name in flatten_params(params) if is_adapter(name)}
    assert names == {
        f"layers.{part}.lora_{factor}"
        for part in ("attention.query", "mlp.down")
        for factor in "ab"
    }
    sizes = [leaf.size for leaf in jax.tree.leaves(trained_part(model, params))]
    assert num_adapter_parameters(model) == sum(sizes)
    everywhere, _ = adapted()
    leaves = jax.tree.leaves(trained_part(everywhere, abstract_params(everywhere)))
    assert num_adapter_parameters(everywhere) == sum(leaf.size for leaf in leaves)
    assert len(leaves) == 2 * len(LORA_TARGETS)


def test_beside_experts_attention_may_have_them(adapted):
    changes = {"num_experts": 3, "experts_per_token": 2, "expert_dim": 8}
    model, params = adapted(targets=ATTENTION_TARGETS, **changes)
    sizes = [leaf.size for leaf in jax.tree.leaves(trained_part(model, params))]
    assert num_adapter_parameters(model) == sum(sizes) and len(sizes) == 8
    whole = flatten_params(merged_params(model, params, "float32"))
    assert whole.keys() == flatten_params(abstract_params(base_model(model))).keys()


def test_they_begin_uniform_and_adding_nothing(adapted):
    model, _ = adapted(targets=("q_proj",), embed_dim=64, head_dim=64)
    params = init_params(model, 0)
    leaves = flatten_params(params)
    a = np.asarray(leaves["layers.attention.query.lora_a"]).ravel()
    bound = 64**-0.5  # kaiming_uniform_(a=sqrt(5)) of 64 inputs, as PEFT draws it
    assert np.abs(a).max() < bound and abs(a.mean()) < 0.1 * bound
    assert a.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert not any(leaf.any() for name, leaf in leaves.items() if name.endswith("lora_b"))
    base = {name: leaf for name, leaf in leaves.items() if not is_adapter(name)}
    assert params_digest(base) == params_digest(init_params(base_model(model), 0))
    assert params_digest(merged_params(model, params, "float32")) == params_digest(base)
    only = init_params(model, 0, of=is_adapter)
    assert params_digest(only) == params_digest(trained_part(model, params))
    assert params_digest(joined(unflatten_params(base), only)) == params_digest(params)
    assert params_digest(init_params(model, 1, of=is_adapter)) != params_digest(only)


@partial(jax.jit, static_argnums=0)
def by_row(model, params):
    tokens = jax.random.randint(jax.random.key(0), (1, 64), 0, 24)
    positions, segments = jnp.arange(64)[None], jnp.ones((1, 64), jnp.int32)
    hidden, _ = hidden_states_and_experts(
        model, params, tokens, positions, segments, remat="none", attention="paged"
    )
    return hidden


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_adapters_is_the_one_with_merged_matrices(adapted, dtype):
    """To the bit, in the engine's order of sums: what is trained is what samples."""
    model, params = adapted(dtype=dtype, attention_bias=True, num_layers=1)
    found = by_row(model, params)
    leaves = {name: leaf for name, leaf in flatten_params(params).items() if not is_adapter(name)}
    base, whole = base_model(model), merged_params(model, params, "float32")
    assert (found == by_row(base, whole)).all()
    assert (found != by_row(base, unflatten_params(leaves))).any(), "adapters add"


def test_layer_by_layer_is_the_same_as_all_at_once(adapted):
    model, params = adapted()
    each = [merged_layer(model, layer, "float32") for layer in unstack_layers(params)["layers"]]
    whole = merged_params(model, params, "float32")["layers"]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    assert params_digest(stacked) == params_digest(whole)


def test_a_model_without_adapters_is_trained_whole(small_model):
    model = small_model()
    params = init_params(model, 0)
    assert trained_part(model, params) is params and joined(None, params) is params
    assert params_digest(merged_params(model, params, "float32")) == params_digest(params)
    assert base_model(replace(model, lora=LoraConfig(rank=2))) == model
