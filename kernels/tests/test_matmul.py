"""Rows times a matrix: float64 products, bits that depend on the row alone, gradients.

That instruction sets give equal bits is tested in `test_cpu.py`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlboost_kernels import available_implementations, matmul, pack_panels
from rlboost_kernels.cpu import library
from rlboost_kernels.matmul.panels import are_pairs, packed, unpack_panels

# Of the norm of the sums of magnitudes, which terms that cancel do not make small.
TOLERANCES = {"float32": 3e-7, "bfloat16": 4e-3, "float16": 5e-4}


def operands(M, K, N, dtype="float32", seed=0):
    rng, dtype = np.random.default_rng(seed), jnp.dtype(dtype)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in ((M, K), (K, N)))


def float64(x, w):
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


@pytest.fixture
def cpu():
    if reason := library.why_missing():
        pytest.skip(reason)
    return partial(matmul, implementation="cpu")


@pytest.mark.usefixtures("unoptimized")
@settings(
    deadline=None,
    max_examples=settings.default.max_examples // 10,  # a program each
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a setting, the same every time
)
@given(
    M=st.integers(1, 70),
    K=st.integers(1, 1100),
    N=st.integers(1, 300),
    dtype=st.sampled_from(list(TOLERANCES)),
    transposed=st.booleans(),
    wide=st.booleans(),
)
def test_matches_float64(M, K, N, dtype, transposed, wide):
    x, w = operands(M, K, N, dtype, seed=M)
    expected = float64(x, w)
    matrix = jnp.asarray(np.ascontiguousarray(w.T) if transposed else w)
    for name in available_implementations():
        out = matmul(
            jnp.asarray(x),
            matrix,
            transposed=transposed,
            out_dtype="float32" if wide else None,
            implementation=name,
        )
        assert out.dtype == ("float32" if wide else dtype)
        error = np.linalg.norm(np.asarray(out, np.float64) - expected)
        tolerance = TOLERANCES["float32" if wide else dtype]
        assert error <= tolerance * np.linalg.norm(float64(abs(x), abs(w))), name


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("K", "N"), [(64, 32), (1100, 77), (513, 200), (40, 1)])
def test_the_number_of_rows_cannot_show(cpu, K, N, dtype):
    x, w = operands(300, K, N, dtype)
    places = ((0, 1), (5, 2), (0, 7), (20, 12), (3, 13), (100, 64), (0, 241))

    @jax.jit  # one program of many calls, each of so many rows
    def products(x, w, w_transposed):
        parts = [cpu(x[first : first + count], w) for first, count in places]
        return cpu(x, w), cpu(x, w_transposed, transposed=True), parts

    whole, turned, parts = jax.tree.map(np.asarray, products(x, w, np.ascontiguousarray(w.T)))
    np.testing.assert_array_equal(turned, whole)
    for (first, count), part in zip(places, parts, strict=True):
        assert part.tobytes() == whole[first : first + count].tobytes(), (first, count)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_column_alone_has_the_bits_that_it_has_in_a_matrix(cpu, dtype):
    """Means of rows are such products, for which rows and column change places."""
    x, w = operands(300, 1100, 40, dtype)

    @jax.jit
    def products(x, w, column):
        parts = [(cpu(x[:M], column), cpu(x[:M], column.T, transposed=True)) for M in (1, 7, 300)]
        return cpu(x, w), parts

    whole, parts = jax.tree.map(np.asarray, products(x, w, w[:, 33:34]))
    for alone, turned in parts:
        assert alone.shape == turned.shape == (len(alone), 1)
        expected = whole[: len(alone), 33].tobytes()
        assert alone.tobytes() == turned.tobytes() == expected, len(alone)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("K", "N"), [(64, 32), (1100, 96), (513, 416), (40, 1024)])
def test_panels_change_no_bit(cpu, K, N, dtype):
    x, w = operands(300, K, N, dtype)
    panels = pack_panels(w)
    np.testing.assert_array_equal(panels, pack_panels(w.T, transposed=True))
    forms = [panels, packed(w, in_pairs=False)]
    if K % 2 == 0:
        forms.append(packed(w, in_pairs=True))  # in any type and on any machine, if slowly
    for rows in (1, 7, 24, 25, 300):  # of one block, two and more
        plain = np.asarray(cpu(x[:rows], w, out_dtype="float32"))
        for form in forms:
            out = np.asarray(cpu(x[:rows], form, out_dtype="float32"))
            assert out.tobytes() == plain.tobytes(), (rows, form.shape)


def test_where_an_entry_lies_in_panels():
    _, w = operands(1, 6, 96)
    rows, pairs = packed(w, in_pairs=False), packed(w, in_pairs=True)
    assert rows.shape == (3, 6, 32) and pairs.shape == (3, 3, 64)
    for k in range(6):
        for n in range(96):
            assert rows[n // 32, k, n % 32] == w[k, n]
            # The upper half of a little-endian word is the second one.
            assert pairs[n // 32, k // 2, 2 * (n % 32) + 1 - k % 2] == w[k, n]
    np.testing.assert_array_equal(unpack_panels(rows), w)
    np.testing.assert_array_equal(unpack_panels(pairs), w)


def test_pairs_are_for_products_of_bfloat16_where_the_processor_takes_them(monkeypatch):
    _, w = operands(1, 6, 96)
    for known in (True, False):
        monkeypatch.setattr(library, "multiplies_pairs", lambda known=known: known)
        assert not are_pairs(pack_panels(w))
        assert are_pairs(pack_panels(w, dtype="bfloat16")) == known
        assert are_pairs(pack_panels(w.astype("bfloat16"))) == known
        assert not are_pairs(pack_panels(w[1:], dtype="bfloat16"))  # of an odd number of rows


@pytest.mark.parametrize("in_pairs", [False, True])
def test_panels_have_gradients_and_a_plain_form(in_pairs):
    x, w = operands(9, 34, 64)
    target = jnp.cos(jnp.arange(9 * 64.0)).reshape(9, 64)

    def loss(x, w):
        return (matmul(x, w) * target).sum()

    dx, dw = jax.grad(loss, argnums=(0, 1))(x, w)
    got_x, got_w = jax.grad(loss, argnums=(0, 1))(x, packed(w, in_pairs=in_pairs))
    np.testing.assert_array_equal(got_x, dx)
    np.testing.assert_array_equal(got_w, packed(dw, in_pairs=in_pairs))
    xla = partial(matmul, x, implementation="xla")
    np.testing.assert_array_equal(xla(packed(w, in_pairs=in_pairs)), xla(w))


def test_only_whole_panels_are_packed():
    with pytest.raises(ValueError, match="40 columns; panels are of 32"):
        pack_panels(jnp.zeros((3, 40)))
    with pytest.raises(ValueError, match=r"w has shape \(3,\)"):
        pack_panels(jnp.zeros(3))


@pytest.mark.parametrize(
    ("K", "dtype"), [(1300, "float32"), (1300, "bfloat16"), (1301, "bfloat16"), (1, "bfloat16")]
)
def test_an_element_is_chains_of_512_added_in_order(cpu, K, dtype):
    """In bfloat16, too, where an instruction may take two entries: its order is the same."""
    if library.isa() == "portable":
        pytest.skip("portable code may round products")
    x, w = operands(1, K, 3, dtype)
    out = np.asarray(cpu(x, w, out_dtype="float32"))
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    for n in range(3):
        total = np.float32(0)
        for start in range(0, K, 512):
            chain = np.float64(0)
            for k in range(start, min(K, start + 512)):
                # A product of two float32 is exact in float64, so this rounds nearly always as
                # one fused operation does: once.
                chain = np.float64(np.float32(chain + x[0, k] * w[k, n]))
            total = np.float32(total + np.float32(chain)) if start else np.float32(chain)
        assert out[0, n] == total


@pytest.mark.parametrize(
    ("x", "w", "exact"),
    [
        ([2.0**-130], [1.0], 2.0**-130),  # a denormal operand
        ([2.0**-70], [2.0**-60], 2.0**-130),  # a denormal product
        ([1.5 * 2.0**-126, -1.0], [1.0, 2.0**-126], 2.0**-127),  # a denormal sum
        ([2.0**-126, 1.0], [1.0, 2.0**-126], 2.0**-125),  # none
    ],
)
def test_denormal_numbers_are_zero_to_pairs_of_bfloat16_only(cpu, x, w, exact):
    for dtype in ("float32", "bfloat16"):
        out = cpu(np.array([x], dtype), np.array([w], dtype).T, out_dtype="float32")
        flushed = dtype == "bfloat16" and library.multiplies_pairs() and exact < 2.0**-126
        assert np.asarray(out)[0, 0] == (0.0 if flushed else exact), dtype


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_are_those_of_the_plain_product(transposed):
    x, w = map(jnp.asarray, operands(9, 33, 20))
    target = jnp.cos(jnp.arange(180.0)).reshape(9, 20)

    def loss(product, x, w):
        return (product(x, w.T if transposed else w) * target).sum()

    ours = jax.grad(partial(loss, partial(matmul, transposed=transposed)), argnums=(0, 1))(x, w)
    plain = partial(loss, lambda x, w: x @ (w.T if transposed else w))
    for got, expected in zip(ours, jax.grad(plain, argnums=(0, 1))(x, w), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_under_vmap_scan_and_remat():
    x, w = map(jnp.asarray, operands(4, 8, 8))
    stack = jnp.stack([w, 2 * w, 3 * w])
    expected = jnp.stack([x @ m for m in stack])
    np.testing.assert_allclose(jax.vmap(matmul, (None, 0))(x, stack), expected, rtol=1e-5)
    step = jax.checkpoint(lambda carry, m: (matmul(carry, m), None))
    out, _ = jax.lax.scan(step, x, stack)
    np.testing.assert_allclose(out, x @ w @ (2 * w) @ (3 * w), rtol=1e-4)


def test_empty_operands():
    assert matmul(jnp.zeros((0, 3)), jnp.zeros((3, 2))).shape == (0, 2)
    np.testing.assert_array_equal(matmul(jnp.zeros((2, 0)), jnp.zeros((0, 3))), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((2, 3), (4, 5), {}, "rows of x have 3 entries and axis 0 of w has 4"),
        ((2, 3), (3, 5), {"transposed": True}, "axis 1 of w has 5"),
        ((2, 3, 1), (3, 5), {}, "both must have two axes"),
        ((2, 3), (3, 5), {"out_dtype": "bfloat16"}, "out_dtype is bfloat16"),
    ],
)
def test_what_does_not_fit(x, w, options, message):
    with pytest.raises(ValueError, match=message):
        matmul(jnp.zeros(x), jnp.zeros(w), **options)


def test_types_that_do_not_fit():
    with pytest.raises(ValueError, match="x has type int32 and w int32"):
        matmul(jnp.zeros((2, 3), int), jnp.zeros((3, 2), int))
    with pytest.raises(ValueError, match="x has type float32 and w bfloat16"):
        matmul(jnp.zeros((2, 3)), jnp.zeros((3, 2), "bfloat16"))
