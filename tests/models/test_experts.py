"""Routing and experts, in both forms, against a loop over tokens in NumPy float64."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import available_implementations

from rlboost_jax.models.forward import apply_layer, hidden_states_and_experts
from rlboost_jax.models.params import init_params, unstack_layers

N, X, A, E, F = 40, 5, 2, 16, 12
MOE = {"num_experts": X, "experts_per_token": A, "expert_dim": F}


@pytest.fixture(params=[True, False], ids=["adding up to 1", "as they are"])
def model(small_model, request):
    return small_model(**MOE, normalize_experts=request.param)


@pytest.fixture
def sure(small_model):
    return small_model(**MOE)


@pytest.fixture
def layer(small_model):
    model = small_model(**MOE)  # which has the same parameters however weights are normalised
    return jax.tree.map(lambda leaf: 3 * leaf, unstack_layers(init_params(model, 0))["layers"][0])


@pytest.fixture
def x():
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, E)), jnp.float32)


def run(model, layer, x, **options):
    """One layer without attention, which is not in question."""
    return apply_layer(
        model, layer, x, jnp.zeros(len(x), jnp.int32), lambda q, k, v: 0 * q, **options
    )


def by_hand(model, layer, x, chosen=None):
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), layer)
    mlp, x = layer["mlp"], np.asarray(x, np.float64)
    out, taken = x.copy(), np.zeros((len(x), A), int)
    for n, row in enumerate(x):
        h = row / np.sqrt((row**2).mean() + model.norm_epsilon) * layer["mlp_norm"]["scale"]
        logits = h @ mlp["router"]["kernel"]
        share = np.exp(logits - logits.max())
        share /= share.sum()
        taken[n] = np.argsort(-share)[:A] if chosen is None else chosen[n]
        total = share[taken[n]].sum() if model.normalize_experts else 1.0
        for e in taken[n]:
            gate, up = (h @ mlp["experts"][name][e] for name in ("gate", "up"))
            inner = gate / (1 + np.exp(-gate)) * up
            out[n] += share[e] / total * (inner @ mlp["experts"]["down"][e])
    return out, taken


@pytest.mark.parametrize("by_row", [False, True])
def test_a_token_is_what_its_experts_add_up_to(model, layer, x, by_row):
    expected, taken = by_hand(model, layer, x)
    out, chosen = jax.jit(lambda x: run(model, layer, x, by_row=by_row))(x)
    np.testing.assert_array_equal(chosen, taken)
    assert len(np.unique(taken)) == X and np.abs(expected - x).max() > 1
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by_row", [False, True])
def test_experts_can_be_given(model, layer, x, by_row):
    """As when the learner replays what the engine chose: weights are today's, the choice is not."""
    given = np.random.default_rng(1).permuted(np.tile(np.arange(X), (N, 1)), axis=1)[:, :A]
    expected, _ = by_hand(model, layer, x, chosen=given)
    replay = jax.jit(lambda x, given: run(model, layer, x, by_row=by_row, experts=given))
    out, chosen = replay(x, jnp.asarray(given, jnp.int32))
    np.testing.assert_array_equal(chosen, given)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_both_forms_have_the_same_gradient(sure, layer, x):
    upstream = jax.random.normal(jax.random.key(0), (N, E))

    def gradient(by_row):
        def loss(layer, x):
            return (run(sure, layer, x, by_row=by_row)[0] * upstream).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(layer, x)

    by_row, sorted_ = gradient(True), gradient(False)
    same = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)
    jax.tree.map(same, by_row, sorted_)
    router = sorted_[0]["mlp"]["router"]["kernel"]
    assert (np.abs(router).max(axis=0) > 0).all(), "no gradient reaches the router"


def test_the_gradient_is_a_finite_difference(sure, layer, x):
    """The differences are of the loop in float64."""
    upstream = np.random.default_rng(1).normal(size=(N, E))
    gradient = jax.jit(jax.grad(lambda layer: (run(sure, layer, x)[0] * upstream).sum()))(layer)
    gradient = gradient["mlp"]
    rng = np.random.default_rng(0)
    for name in ("gate", "up", "down"):
        kernel = np.asarray(layer["mlp"]["experts"][name], np.float64)
        direction = rng.normal(size=kernel.shape)

        def moved(step, name=name, kernel=kernel, direction=direction):
            experts = {**layer["mlp"]["experts"], name: kernel + step * direction}
            there = {**layer, "mlp": {**layer["mlp"], "experts": experts}}
            return (by_hand(sure, there, x)[0] * upstream).sum()

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose((gradient["experts"][name] * direction).sum(), slope, rtol=1e-3)


@pytest.mark.optimized
@pytest.mark.skipif("cpu" not in available_implementations(), reason="needs the compiled kernels")
def test_by_row_a_token_s_bits_are_its_own(sure, layer, x):
    """Whatever its companions choose, however many there are; 8 are the engine's fewest."""
    alone = jax.jit(lambda x: run(sure, layer, x, by_row=True)[0])
    whole = np.asarray(alone(x))
    for rows in (8, 24):
        assert np.asarray(alone(x[:rows])).tobytes() == whole[:rows].tobytes()
    others = jnp.concatenate([x[:3], 5 * x[3:][::-1]])
    assert np.asarray(alone(others))[:3].tobytes() == whole[:3].tobytes()


def test_the_whole_decoder_replays_its_own_choices(small_model):
    model = small_model(**MOE)
    params = init_params(model, 0)
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, model.vocab_size)
    at = (jnp.tile(jnp.arange(12), (2, 1)), jnp.ones((2, 12), jnp.int32))

    @partial(jax.jit, static_argnums=0)
    def states(attention, experts=None):
        return hidden_states_and_experts(
            model, params, tokens, *at, remat="none", attention=attention, experts=experts
        )

    x, chosen = states("dense")
    assert chosen.shape == (model.num_layers, 24, A) and chosen.dtype == jnp.int32
    np.testing.assert_array_equal(states("dense", chosen)[0], x)
    other = (chosen + 1) % X
    replayed, taken = states("paged", other)
    np.testing.assert_array_equal(taken, other)
    np.testing.assert_allclose(replayed, states("dense", other)[0], atol=1e-4)
    assert np.abs(replayed - x).max() > 1e-2


def test_experts_over_a_mesh(run_with_devices, small_model):
    """Outputs, choices and gradients are those of one device, with choices given and without;
    experts lie along `tensor`."""
    model = small_model(**{**MOE, "num_experts": 4}, num_layers=1)
    source = f"""
import jax, jax.numpy as jnp, numpy as np
from rlboost_jax.settings.model_config import LoraConfig, ModelConfig
from rlboost_jax.models.forward import hidden_states_and_experts
from rlboost_jax.models.params import init_params
from rlboost_jax.models.parameter_sharding import make_mesh, param_shardings

model = {model!r}
params = init_params(model, 0)
tokens = jax.random.randint(jax.random.key(0), (4, 12), 0, model.vocab_size)
at = (jnp.tile(jnp.arange(12), (4, 1)), jnp.ones((4, 12), jnp.int32))

def loss(params, mesh):
    x, chosen = hidden_states_and_experts(model, params, tokens, *at, remat="none", mesh=mesh)
    return jnp.sin(x).mean(), (x, chosen)

run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
(_, (x, chosen)), gradient = run(params, None)
mesh = make_mesh((2, 2, 2))
split = jax.device_put(params, param_shardings(model, mesh))
(_, (x8, chosen8)), gradient8 = run(split, mesh)
np.testing.assert_array_equal(chosen, chosen8)
np.testing.assert_allclose(x, x8, atol=1e-5)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, gradient8)
def replayed(params, mesh, given):
    return hidden_states_and_experts(
        model, params, tokens, *at, remat="none", mesh=mesh, experts=given
    )

replay = jax.jit(replayed, static_argnums=1)
given = (chosen + 1) % model.num_experts
np.testing.assert_allclose(replay(params, None, given)[0], replay(split, mesh, given)[0], atol=1e-5)
assert np.abs(replay(params, None, given)[0] - x).max() > 1e-2
experts = split["layers"]["mlp"]["experts"]
print(*{{str(leaf.addressable_shards[0].data.shape) for leaf in experts.values()}}, sep="\\n")
"""
    printed = run_with_devices(source, 8)
    assert {f"(1, 2, {E // 2}, {F})", f"(1, 2, {F}, {E // 2})"} == set(printed.splitlines())


SHARED_OUT = """
import re
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from rlboost_jax.models.experts import _taken
from rlboost_jax.models.parameter_sharding import BATCH, make_mesh

rows = NamedSharding(make_mesh((4, 1, 1)), PartitionSpec(BATCH))
shapes = [jax.ShapeDtypeStruct((8, 6), jnp.float32), jax.ShapeDtypeStruct((8, 2), jnp.int32)]

def loss(logits, chosen):
    return jnp.sum(jnp.square(jax.vmap(_taken)(logits, chosen)))

program = jax.jit(jax.grad(loss), in_shardings=(rows, rows), out_shardings=rows)
text = program.lower(*shapes).compile().as_text()
print(re.findall(r"all-reduce|all-gather|collective-permute", text))
"""


def test_what_is_taken_for_a_row_stays_where_the_row_is(
    run_with_devices: Callable[..., str],
) -> None:
    """A gather over all rows at once is one that the partitioner cannot share out."""
    assert run_with_devices(SHARED_OUT, 4).splitlines()[-1] == "[]"
