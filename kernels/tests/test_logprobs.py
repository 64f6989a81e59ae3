"""Selected log-probabilities against float64 in closed form: values, gradients, memory, shards."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlboost_kernels import choice_intervals, selected_logprobs, tokens_from_noise

IMPLEMENTATIONS = ("reference", "xla")
CHUNKS = (None, (5, 7), (100, 13), (4, 1000))


def problem(N=21, E=12, V=40, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(N, E)), dtype)
    unembedding = jnp.asarray(rng.normal(size=(E, V)), dtype)
    return hidden, unembedding, jnp.asarray(rng.integers(V, size=N), jnp.int32)


def by_hand(hidden, unembedding, tokens, *, temperature=1.0, soft_cap=None, by=None):
    """Float64 log-probabilities, entropies, and the gradients of sum(a * logprobs + b * entropy)
    for the weights `by`, which are those of `weights` by default."""
    h, w = np.asarray(hidden, np.float64), np.asarray(unembedding, np.float64)
    rows = np.arange(len(h))
    z, slope = h @ w, 1.0
    if soft_cap is not None:
        slope = 1 - np.tanh(z / soft_cap) ** 2
        z = soft_cap * np.tanh(z / soft_cap)
    z = z / temperature
    logp = z - z.max(axis=1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
    p = np.exp(logp)
    entropy = -(p * logp).sum(axis=1)
    a, b = weights(len(h)) if by is None else by
    dz = -p * (a[:, None] + b[:, None] * (logp + entropy[:, None]))
    dz[rows, tokens] += a
    dz *= slope / temperature
    return logp[rows, tokens], entropy, dz @ w.T, h.T @ dz


def weights(N):
    return np.random.default_rng(N).normal(size=(2, N))


def run(hidden, unembedding, tokens, **options):
    """Values and gradients as `by_hand` gives them."""
    a, b = (jnp.asarray(x, jnp.float32) for x in weights(len(hidden)))

    def total(hidden, unembedding):
        logprobs, entropy = selected_logprobs(hidden, unembedding, tokens, **options)
        return (a * logprobs + b * entropy).sum(), (logprobs, entropy)

    gradients_of = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    gradients, values = gradients_of(hidden, unembedding)
    return (*values, *gradients)


def assert_close(found, expected, tolerance):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=tolerance * np.abs(y).max())


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_values_and_gradients(implementation, options):
    arguments = problem()
    expected = by_hand(*arguments, **options)
    chunks = CHUNKS if not options else CHUNKS[:2]
    for chunk in chunks if implementation == "xla" else (None,):
        found = run(*arguments, **options, chunk=chunk, implementation=implementation)
        assert found[0].dtype == found[1].dtype == jnp.float32
        assert_close(found, expected, 3e-6)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_some_rows_of_a_table(implementation, frozen, options):
    hidden, unembedding, tokens = problem()
    where = np.random.default_rng(1).random(len(tokens)) < 0.4
    a, b = np.where(where, weights(len(tokens)), 0.0)
    b *= not frozen
    logprobs, entropy, by_hidden, by_matrix = by_hand(
        hidden, unembedding, tokens, **options, by=(a, b)
    )
    values = np.where(where, logprobs, 0.0), np.where(where, entropy, 0.0)
    for chunk in (None, (5, 40), (5, 7)) if implementation == "xla" else (None,):

        def total(hidden, table, chunk=chunk):
            logprobs, entropy = selected_logprobs(
                hidden,
                table,
                tokens,
                where=jnp.asarray(where),
                transposed=True,
                frozen=frozen,
                chunk=chunk,
                implementation=implementation,
                **options,
            )
            return a @ logprobs + weights(len(tokens))[1] @ entropy, (logprobs, entropy)

        gradients_of = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
        gradients, found = gradients_of(hidden, unembedding.T)
        assert_close((*found, gradients[0]), (*values, by_hidden), 3e-6)
        assert_close((gradients[1],), (by_matrix.T * (not frozen),), 3e-6)


def test_no_row_is_looked_at():
    hidden, unembedding, tokens = problem()
    none = jnp.zeros(len(tokens), bool)
    for found in choice_intervals(hidden, unembedding, tokens, where=none, chunk=(5, 40)):
        assert not found.any()


@pytest.mark.usefixtures("unoptimized")
@settings(
    max_examples=settings.default.max_examples // 16,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a setting, the same every time
)
@given(
    N=st.integers(1, 30),
    E=st.integers(1, 9),
    V=st.integers(1, 50),
    chunk=st.none() | st.tuples(st.integers(1, 40), st.integers(1, 60)),
    options=st.fixed_dictionaries(
        {}, optional={"temperature": st.floats(0.3, 3), "soft_cap": st.floats(0.5, 9)}
    ),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_shape_and_chunk(N, E, V, chunk, options, dtype):
    arguments = problem(N, E, V, seed=N, dtype=dtype)
    expected = by_hand(*arguments, **options)
    found = run(*arguments, **options, chunk=chunk)
    assert found[2].dtype == found[3].dtype == dtype
    # The products are of bfloat16 numbers with float32 sums, so the values are as good as float32.
    value_scale = 1 + np.abs(expected[0]).max()
    for x, y in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * value_scale)
    scale = 1 + max(np.abs(y).max() for y in expected[2:])
    for x, y in zip(found[2:], expected[2:], strict=True):
        limit = (3e-2 if dtype == "bfloat16" else 2e-5) * scale
        np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=limit)


def masses_by_hand(kind, hidden, unembedding, tokens, *, temperature=1.0, soft_cap=None):
    """Float64 probabilities of the ids smaller than each token, or of a tree's children."""
    z = np.asarray(hidden, np.float64) @ np.asarray(unembedding, np.float64)
    if soft_cap is not None:
        z = soft_cap * np.tanh(z / soft_cap)
    p = np.exp((z - z.max(axis=1, keepdims=True)) / temperature)
    p /= p.sum(axis=1, keepdims=True)
    rows = list(zip(p, np.asarray(tokens), strict=True))
    if kind == "inverse_cdf":
        return np.array([row[:token].sum() for row, token in rows])
    ids = np.arange(p.shape[1])

    def children(row, token, level):
        inside = ids >> 4 * (level + 1) == token >> 4 * (level + 1)
        return np.bincount((ids[inside] >> 4 * level) & 15, row[inside], 16)

    levels = range(next(n for n in range(1, 9) if 16**n >= len(ids)))
    return np.array([[children(row, token, level) for level in levels] for row, token in rows])


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["inverse_cdf", "tree"])
def test_the_probabilities_that_noise_decides_between(kind, implementation, options):
    hidden, unembedding, tokens = problem()
    tokens = tokens.at[0].set(0).at[1].set(unembedding.shape[1] - 1)
    expected = masses_by_hand(kind, hidden, unembedding, tokens, **options)
    for chunk in CHUNKS if implementation == "xla" else (None,):
        *others, masses = choice_intervals(
            hidden,
            unembedding,
            tokens,
            **options,
            noise=kind,
            chunk=chunk,
            implementation=implementation,
        )
        np.testing.assert_allclose(masses, expected, atol=1e-6)
        plain = selected_logprobs(
            hidden, unembedding, tokens, **options, chunk=chunk, implementation=implementation
        )
        for one, other in zip(others, plain, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("chunk", [None, (5, 32), (21, 16), (21, 48)])
def test_children_of_a_tree_of_three_levels(chunk):
    """A vocabulary and blocks of whole nodes, whose offsets the program does not know."""
    hidden, unembedding, tokens = problem(V=304)
    expected = masses_by_hand("tree", hidden, unembedding, tokens)
    *_, masses = choice_intervals(hidden, unembedding, tokens, noise="tree", chunk=chunk)
    assert masses.shape == (21, 3, 16)
    np.testing.assert_allclose(masses, expected, atol=1e-6)


@pytest.mark.usefixtures("unoptimized")
def test_the_noise_of_a_sampled_token_is_in_its_interval():
    """Whatever `tokens_from_noise` yields, within rounding; and of another token it is not."""
    hidden, unembedding, _ = problem(N=512, V=40)
    noise = jnp.asarray(np.random.default_rng(1).uniform(size=512), jnp.float32)
    ones, zeros = jnp.ones(512), jnp.zeros(512, jnp.int32)
    sampled, _ = tokens_from_noise(hidden @ unembedding / 0.7, noise, ones, ones, zeros)
    for tokens, right in ((sampled, True), ((sampled + 1) % 40, False)):
        logprobs, _, below = choice_intervals(hidden, unembedding, tokens, temperature=0.7)
        outside = np.maximum(below - noise, noise - below - np.exp(logprobs))
        assert ((outside < 1e-6) == right).mean() > (0.999 if right else 0.99)


@pytest.mark.usefixtures("unoptimized")
def test_large_logits_stay_finite():
    """Only differences matter, within a block and between blocks."""
    hidden, unembedding, tokens = problem()
    arguments = hidden * 1e4, unembedding, tokens
    expected = by_hand(*arguments)
    for chunk in CHUNKS[1::2]:
        found = run(*arguments, chunk=chunk)
        assert all(np.isfinite(x).all() for x in found)
        assert_close(found[:2], expected[:2], 1e-5)


def test_whole_rows_are_the_plain_arithmetic():
    """To the rounding of the last difference what log_softmax gives, however rows are cut."""
    arguments = problem(192, 32, 112)

    @jax.jit
    def plain(hidden, unembedding, tokens):
        logits = jnp.matmul(hidden, unembedding, preferred_element_type=jnp.float32)
        logprobs = jax.nn.log_softmax(logits, axis=-1)
        return jnp.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]

    for chunk in (None, (64, 112)):
        found, _ = selected_logprobs(*arguments, chunk=chunk)
        np.testing.assert_array_max_ulp(found, np.asarray(plain(*arguments)), maxulp=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [(16, 112), (16, 40), None])
def test_rows_do_not_see_each_other(chunk, dtype):
    hidden, unembedding, tokens = problem(64, 32, 112, dtype=dtype)
    before = selected_logprobs(hidden, unembedding, tokens, chunk=chunk)
    order = np.random.default_rng(1).permutation(64)
    after = selected_logprobs(hidden[order], unembedding, tokens[order], chunk=chunk)
    for x, y in zip(before, after, strict=True):
        assert np.asarray(x)[order].tobytes() == np.asarray(y).tobytes()
    others = hidden.at[1:].set(problem(63, 32, 112, seed=5, dtype=dtype)[0])
    alone = selected_logprobs(others, unembedding, tokens, chunk=chunk)
    assert [x[0] for x in alone] == [x[0] for x in before]


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("chunk", [(128, 2048), (512, 1024), None])
def test_memory_is_that_of_a_block(chunk):
    """4 blocks, and float32 sums of the gradients; all logits would be 512 MB."""
    N, E, V = 4096, 16, 32768
    kinds = jnp.float32, jnp.float32, jnp.int32
    arguments = map(jax.ShapeDtypeStruct, ((N, E), (E, V), (N,)), kinds)

    def both(hidden, unembedding, tokens):
        return sum(x.sum() for x in selected_logprobs(hidden, unembedding, tokens, chunk=chunk))

    gradients = jax.jit(jax.grad(both, argnums=(0, 1)))
    memory = gradients.lower(*arguments).compile().memory_analysis()
    rows, entries = chunk or (512, V)
    sums = 4 * (E * V + 4 * N * E + 16 * N)
    assert memory.temp_size_in_bytes <= 4 * 4 * rows * entries + 2 * sums < 4 * N * V / 1.5


def test_tokens_outside():
    hidden, unembedding, tokens = problem(V=40)
    with pytest.raises(ValueError, match=r"tokens hold \[40, -1\]; the vocabulary has ids 0 to 39"):
        selected_logprobs(hidden, unembedding, tokens.at[3].set(40).at[5].set(-1))
    clipped = jax.jit(selected_logprobs)(hidden, unembedding, tokens.at[0].set(99).at[1].set(-7))
    expected = by_hand(hidden, unembedding, np.asarray(tokens.at[0].set(39).at[1].set(0)))
    assert_close(clipped, expected[:2], 3e-6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden", jnp.zeros(12), r"hidden has shape \(12,\)"),
        ("hidden", jnp.zeros((21, 12), jnp.int32), "hidden has type int32"),
        ("hidden", jnp.zeros((21, 12), jnp.bfloat16), "bfloat16 and unembedding float32"),
        ("unembedding", jnp.zeros((11, 40)), r"it must be \[12, vocabulary\]"),
        ("tokens", jnp.zeros(20, jnp.int32), r"tokens has shape \(20,\); it must be \[21\]"),
        ("tokens", jnp.zeros(21), "tokens has type float32"),
        ("temperature", 0.0, "temperature is 0.0; it must be above 0"),
        ("soft_cap", -1.0, "soft_cap is -1.0"),
        ("chunk", (0, 4), r"chunk is \(0, 4\)"),
        ("axis_name", "tensor", "unembedding is not split over axis 'tensor'"),
        ("gather_axis", "fsdp", "unembedding is not split over axis 'fsdp'"),
    ],
)
def test_what_does_not_fit(name, value, message):
    arguments = dict(zip(("hidden", "unembedding", "tokens"), problem(), strict=True))
    with pytest.raises(ValueError, match=message):
        selected_logprobs(**{**arguments, name: value})
    with pytest.raises(NotImplementedError, match="'mosaic' is not available"):
        selected_logprobs(*problem(), implementation="mosaic")


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, test_logprobs as t
from functools import partial
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rlboost_kernels import choice_intervals, selected_logprobs, tokens_from_noise

hidden, unembedding, tokens = arguments = t.problem(N=24, V=40)
options = dict(temperature=0.7, soft_cap=4.0)
masses = {k: t.masses_by_hand(k, *arguments, **options) for k in ("inverse_cdf", "tree")}
expected = t.by_hand(*arguments, **options)
a, b = (jnp.asarray(x, jnp.float32) for x in t.weights(24))

def check(op):
    def total(hidden, unembedding):
        logprobs, entropy = op(hidden, unembedding, tokens)
        return (a * logprobs + b * entropy).sum(), (logprobs, entropy)
    make = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    gradients, values = make(hidden, unembedding)
    t.assert_close((*values, *gradients), expected, 3e-6)

for shape in ((1, 4), (2, 2)):
    mesh = jax.make_mesh(shape, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    specs = dict(
        mesh=mesh,
        in_specs=(P("data"), P(None, "tensor"), P("data")),
        out_specs=(P("data"), P("data")),
    )
    for name, chunk in (("xla", None), ("xla", (4, 3)), ("reference", None)):
        op = partial(selected_logprobs, **options, axis_name="tensor", chunk=chunk,
                     implementation=name)
        check(jax.shard_map(op, **specs))
        thirds = {**specs, "out_specs": (P("data"),) * 3}
        for kind, expected_masses in masses.items():
            op = partial(choice_intervals, **options, axis_name="tensor", chunk=chunk, noise=kind,
                         implementation=name)
            found = jax.shard_map(op, **thirds)(*arguments)[2]
            np.testing.assert_allclose(found, expected_masses, atol=1e-6)
    op = partial(selected_logprobs, **options, axis_name="tensor")
    try:
        jax.jit(jax.shard_map(op, **specs, check_vma=False))(*arguments)
        raise SystemExit("no error without check_vma")
    except ValueError as error:
        assert "leave check_vma on" in str(error)

    # The gradient taken by each device for itself: of its own rows, so summed over `data` alone.
    @partial(jax.shard_map, mesh=mesh, in_specs=(*specs["in_specs"], P("data"), P("data")),
             out_specs=(P("data"), P(None, "tensor")))
    def inside(hidden, unembedding, tokens, a, b):
        def total(hidden, unembedding):
            logprobs, entropy = selected_logprobs(
                hidden, unembedding, tokens, **options, axis_name="tensor")
            return jax.lax.psum((a * logprobs + b * entropy).sum(), "data")
        return jax.grad(total, argnums=(0, 1))(hidden, unembedding)
    t.assert_close(jax.jit(inside)(*arguments, a, b), expected[2:], 3e-6)

# Rows over two axes; the width is split over one of them, too. The matrix is gathered once, and
# all devices' parts of its gradient are summed once, before rounding.
mesh = jax.make_mesh((2, 2, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
rows = P(("data", "fsdp"))
specs = dict(mesh=mesh, in_specs=(rows, P("fsdp", "tensor"), rows), out_specs=(rows, rows))
for name, chunk in (("xla", None), ("xla", (2, 7)), ("reference", None)):
    op = partial(selected_logprobs, **options, axis_name="tensor", gather_axis="fsdp",
                 chunk=chunk, implementation=name)
    check(jax.shard_map(op, **specs))
op = partial(selected_logprobs, axis_name="tensor", gather_axis="fsdp", chunk=(2, 40))
half = [x.astype(jnp.bfloat16) for x in (hidden, unembedding)]
on_mesh = jax.shard_map(op, **specs)
total = lambda h, w: sum(x.sum() for x in on_mesh(h, w, tokens))
program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*half).as_text()
collectives = [line for line in program.splitlines() if "all_gather" in line]
assert len(collectives) == 1 and "tensor<12x40xbf16>" in collectives[0], collectives
scatters = program.split('"stablehlo.reduce_scatter"')[1:]
assert len(scatters) == 1 and "(tensor<12x40xf32>) -> tensor<6x40xf32>" in scatters[0], scatters
try:
    jax.jit(jax.shard_map(op, **specs, check_vma=False))(*arguments)
    raise SystemExit("no error without check_vma")
except ValueError as error:
    assert "leave check_vma on" in str(error)

# Left to the compiler, in blocks of strided rows: each device keeps to its own rows.
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
op = jax.jit(partial(selected_logprobs, **options, chunk=(8, 40)))
split = put(hidden, "data"), put(unembedding), put(tokens, "data")
t.assert_close(op(*split), expected[:2], 3e-6)
text = op.lower(*split).compile().as_text()
assert "all-gather" not in text and "f32[2,40]" in text and "f32[8,40]" not in text
print("ok")
"""


def test_split_over_devices():
    """Over the columns of a vocabulary in `shard_map`, over rows by the compiler."""
    here = os.path.dirname(__file__)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "True",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), here]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "ok", done.stderr
