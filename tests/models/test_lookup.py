"""Gradients of look-ups that GPUs add up in one order, against sums one by one in float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.models.lookup import added_up, rows_in_order, rows_of

WIDTH = 3
SIZES = st.integers(1, 40)


@given(SIZES, st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_each_entry_has_the_sum_of_its_rows(num: int, entries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, entries, num).astype(np.int32)
    rows = rng.normal(size=(num, WIDTH)).astype(np.float32)
    expected = np.zeros((entries, WIDTH))
    np.add.at(expected, tokens, rows.astype(np.float64))
    found = jax.jit(added_up, static_argnums=2)(tokens, rows, entries)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    absent = np.setdiff1d(np.arange(entries), tokens)
    assert not np.any(np.asarray(found)[absent])


def test_many_rows_of_one_token_lose_less_than_one_by_one() -> None:
    """A running float32 sum of 2^16 rows is off by a hundred roundings; one of pairs by a few."""
    rows = np.random.default_rng(0).uniform(0, 1, (2**16, 1)).astype(np.float32)
    found = jax.jit(added_up, static_argnums=2)(np.zeros(2**16, np.int32), rows, 2)
    np.testing.assert_allclose(found[0], rows.sum(0, dtype=np.float64), rtol=3e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_and_gradients_are_those_of_indexing(dtype: str) -> None:
    rng = np.random.default_rng(1)
    table = jnp.asarray(rng.normal(size=(7, WIDTH)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 7, 30))
    weights = jnp.asarray(rng.normal(size=(30, WIDTH)), dtype)

    def loss(rows: Callable[..., jax.Array], table: jax.Array) -> jax.Array:
        return jnp.sum(rows(table, tokens).astype(dtype) * weights, dtype=jnp.float32)

    found = jax.jit(jax.grad(lambda table: loss(rows_in_order, table)))(table)
    expected = jax.jit(jax.grad(lambda table: loss(lambda t, i: t[i], table)))(table)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert found.dtype == jnp.float32 and np.array_equal(
        rows_in_order(table, tokens), table[tokens]
    )


def test_a_cpu_adds_as_it_did() -> None:
    """Its bits are those of runs that began before there was another way."""
    shapes = jax.ShapeDtypeStruct((7, WIDTH), jnp.float32), jax.ShapeDtypeStruct((5,), jnp.int32)
    programs = [
        jax.jit(jax.grad(lambda table, tokens, f=f: jnp.sum(f(table, tokens)))).lower(*shapes)
        for f in (rows_of, lambda table, tokens: table[tokens])
    ]
    ours, plain = (program.as_text() for program in programs)
    assert ours == plain and "stablehlo.sort" not in ours


ON_TWO = """
import jax, jax.numpy as jnp, numpy as np
from rlboost_jax.models import forward, lookup
from rlboost_jax.models.parameter_sharding import make_mesh
from tests.small import small_model
import rlboost_jax.models.decoder as decoder

config = small_model()
rng = np.random.default_rng(0)
table = jnp.asarray(rng.normal(size=(config.vocab_size, config.embed_dim)), jnp.float32)
tokens = jnp.asarray(rng.integers(0, config.vocab_size, 16), jnp.int32)
weights = jnp.asarray(rng.normal(size=(16, config.embed_dim)), jnp.float32)

def gradient(mesh):
    def loss(table):
        x = forward._embedded(config, {"embedding": {"table": table}}, tokens, mesh)
        return jnp.sum(x.astype(jnp.float32) * weights)
    return np.asarray(jax.jit(jax.grad(loss))(table))

expected = gradient(None)
decoder.rows_of = lookup.rows_in_order
for shape in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]:
    np.testing.assert_allclose(gradient(make_mesh(shape)), expected, rtol=1e-5, atol=1e-5)
print("equal")
"""


def test_gradients_on_meshes_are_those_of_one_device(run_with_devices: Callable[..., str]) -> None:
    assert run_with_devices(ON_TWO, 2).splitlines()[-1] == "equal"
