"""What a decoder must be, whatever its weights: causal, blind across segments, one code path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import available_implementations

from rlboost_jax.models.decoder import RMSNorm
from rlboost_jax.models.forward import (
    REMAT_POLICIES,
    apply_layer,
    embed,
    head,
    hidden_states_and_experts,
)
from rlboost_jax.models.params import init_params, unstack_layers

B, T = 2, 12


def rows(config, seed=0):
    tokens = jax.random.randint(jax.random.key(seed), (B, T), 0, config.vocab_size)
    positions = jnp.tile(jnp.arange(T), (B, 1))
    return tokens, positions, jnp.ones((B, T), jnp.int32)


@functools.partial(jax.jit, static_argnames=("config", "remat"))
def logits(config, params, tokens, positions, segments, *, remat="none"):
    x, _ = hidden_states_and_experts(config, params, tokens, positions, segments, remat=remat)
    return head(config, params, x).reshape(*tokens.shape, config.vocab_size)


def attend_by_loops(q, k, v, *, length):
    """Causal attention over one row in NumPy float64, head by head."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for t in range(length):
        for h in range(q.shape[1]):
            group = h // (q.shape[1] // k.shape[1])
            scores = k[: t + 1, group] @ q[t, h] * q.shape[2] ** -0.5
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ v[: t + 1, group] / weights.sum()
    return jnp.asarray(out, jnp.float32)


def test_no_gradient_reaches_the_future(small_model):
    config = small_model()
    params = init_params(config, 0)
    _, positions, segments = rows(config)
    layers = unstack_layers(params)["layers"]

    def outputs(x):
        for layer in layers:
            x, _ = apply_layer(config, layer, x, positions[0], attend)
        return x

    def attend(q, k, v):
        scores = jnp.einsum("tkgd,skd->kgts", q.reshape(T, 2, 2, 8), k) * 8**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((1, 1, T, T), bool)), scores, -jnp.inf)
        return jnp.einsum("kgts,skd->tkgd", jax.nn.softmax(scores), v).reshape(T, 4, 8)

    # The embeddings of single tokens, distinguished by a vocabulary entry of their own each.
    table = jnp.tile(params["embedding"]["table"], (2, 1))[:T]
    own_entries = {**params, "embedding": {"table": table}}

    def one_row(table):
        params = {**own_entries, "embedding": {"table": table}}
        return hidden_states_and_experts(
            config, params, jnp.arange(T)[None], positions[:1], segments[:1], remat="none"
        )[0]

    np.testing.assert_allclose(jax.jit(one_row)(table), jax.jit(outputs)(table), atol=1e-5)
    influence = jnp.abs(jax.jit(jax.jacrev(one_row))(table)).sum(axis=(1, 3))  # [output t, input s]
    np.testing.assert_array_equal(influence > 0, np.tril(np.ones((T, T), bool)))


def test_segments_do_not_see_each_other(small_model):
    config = small_model()
    params = init_params(config, 0)
    tokens, _, _ = rows(config)
    positions = jnp.tile(jnp.concatenate([jnp.arange(5), jnp.arange(7)]), (B, 1))
    segments = jnp.tile(jnp.array([1] * 5 + [2] * 7), (B, 1))
    packed = logits(config, params, tokens, positions, segments)
    for part in (slice(0, 5), slice(5, 12)):
        alone = logits(config, params, tokens[:, part], positions[:, part], segments[:, part])
        np.testing.assert_allclose(packed[:, part], alone, atol=1e-5)
    changed = logits(config, params, tokens.at[:, :5].set(0), positions, segments)
    np.testing.assert_array_equal(packed[:, 5:], changed[:, 5:])


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"qk_norm": False}])
def test_layer_by_layer_equals_all_layers_at_once(small_model, changes):
    """The engine unrolls the layers and brings its own attention; the learner scans."""
    config = small_model(**changes)
    params = init_params(config, 1)
    tokens, positions, segments = rows(config)
    together = logits(config, params, tokens, positions, segments)

    unstacked = unstack_layers(params)
    x = embed(config, unstacked, tokens[0])
    for layer in unstacked["layers"]:
        attend = functools.partial(attend_by_loops, length=T)
        x, _ = apply_layer(config, layer, x, positions[0], attend)
    np.testing.assert_allclose(head(config, unstacked, x), together[0], atol=1e-5)


def test_remat_and_depth_change_nothing_but_the_program(small_model):
    config = small_model(num_layers=6)  # deep enough to be a loop
    params = init_params(config, 0)

    def loss(params, remat):
        return jnp.square(logits(config, params, *rows(config), remat=remat)).sum()

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    expected = gradient(params, "none")
    for remat in REMAT_POLICIES:
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
            gradient(params, remat),
            expected,
        )

    x = embed(config, params, rows(config)[0][0])
    for layer in unstack_layers(params)["layers"]:
        attend = functools.partial(attend_by_loops, length=T)
        x, _ = apply_layer(config, layer, x, jnp.arange(T), attend)
    expected = logits(config, params, *rows(config))[0]
    np.testing.assert_allclose(head(config, params, x), expected, atol=1e-5)


def test_bfloat16_activations_give_float32_logits(small_model):
    config = small_model()
    params = init_params(config, 0)
    exact = logits(config, params, *rows(config))
    rounded = logits(small_model(dtype="bfloat16"), params, *rows(config))
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, exact, atol=0.01)
    assert (rounded != exact).any()


@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16)])
def test_rms_norm_in_float64(shape):
    rng = np.random.default_rng(0)
    x, scale = rng.normal(size=shape).astype(np.float32), rng.normal(size=16).astype(np.float32)
    norm = RMSNorm(16, 1e-6)
    norm.scale.set_value(jnp.asarray(scale))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-5)


def test_a_norm_by_row_is_the_same_function():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 48)), jnp.float32)
    by_row, plain = (RMSNorm(48, 1e-6, by_row=by_row) for by_row in (True, False))
    np.testing.assert_allclose(by_row(x), plain(x), rtol=2e-6)
    ours, theirs = (jax.grad(lambda x, n=n: jnp.sin(n(x)).sum())(x) for n in (by_row, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.optimized
@pytest.mark.skipif("cpu" not in available_implementations(), reason="needs the compiled kernels")
@pytest.mark.parametrize("rows", [1, 8, 24, 64])
def test_a_norm_by_row_does_not_know_how_many_rows_there_are(rows):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(96, 64)), jnp.float32)
    norm = jax.jit(RMSNorm(64, 1e-6, by_row=True))
    assert np.asarray(norm(x[:rows])).tobytes() == np.asarray(norm(x))[:rows].tobytes()


def test_elsewhere_than_on_a_cpu_a_norm_is_a_plain_mean():
    norm = jax.jit(RMSNorm(64, 1e-6, by_row=True)).trace(jnp.ones((8, 64)))
    assert "dot_general" not in norm.lower(lowering_platforms=("cuda",)).as_text()
