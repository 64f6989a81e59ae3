"""Products of groups of rows against loops over groups in float64, gradients included."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from rlboost_kernels import grouped_matmul
from rlboost_kernels.grouped import grouped_mosaic_gpu, layout
from rlboost_kernels.grouped.grouped_api import IMPLEMENTATIONS, choose_grouped, products

TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}  # of the relative norm
K, N = 128, 256
CASES = {  # sizes of groups, rows, and whether matrices are transposed
    "uneven, with rows in no group": ((130, 0, 57), 200, False),
    "one group has all": ((0, 150, 0), 150, True),
    "no group has any": ((0, 0), 5, False),
}
_INTERPRETER = pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"),
    reason=f"jax {jax.__version__} has no interpreter for Mosaic GPU; 0.11 and later do",
)
EACH = [
    pytest.param(name, dtype, marks=[_INTERPRETER] if name == "mosaic_gpu" else [])
    for name in IMPLEMENTATIONS
    for dtype in (["bfloat16"] if name == "mosaic_gpu" else ["float32", "bfloat16"])
]


def random(rng, *shape, dtype):
    return rng.standard_normal(shape, np.float32).astype(jnp.dtype(dtype))


def options(name):
    return {"implementation": name, "interpret": name == "mosaic_gpu"}


def float64(array):
    return np.asarray(array, np.float64)


def groups(sizes):
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def assert_close(found, expected, dtype):
    assert found.dtype == dtype and np.isfinite(float64(found)).all()
    error = np.linalg.norm(float64(found) - expected)
    assert error <= TOLERANCES[str(dtype)] * np.linalg.norm(expected)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(("sizes", "num_rows", "transposed"), CASES.values(), ids=CASES)
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_matches_float64_loops(name, dtype, sizes, num_rows, transposed):
    rng = np.random.default_rng(0)
    rows = random(rng, num_rows, K, dtype=dtype)
    matrices = random(rng, len(sizes), *((N, K) if transposed else (K, N)), dtype=dtype)
    upstream = random(rng, num_rows, N, dtype=dtype)

    @jax.jit
    def with_gradients(rows, matrices, upstream, sizes):
        def product(rows, matrices):
            return grouped_matmul(rows, matrices, sizes, transposed=transposed, **options(name))

        out, pull = jax.vjp(product, rows, matrices)
        return out, *pull(upstream)

    integers = np.asarray(sizes, np.int32)
    out, to_rows, to_matrices = with_gradients(rows, matrices, upstream, integers)
    expected, expected_rows = np.zeros((num_rows, N)), np.zeros((num_rows, K))
    expected_matrices = np.zeros(matrices.shape)
    for g, members in enumerate(groups(sizes)):
        matrix = float64(matrices[g].T if transposed else matrices[g])
        expected[members] = float64(rows)[members] @ matrix
        expected_rows[members] = float64(upstream)[members] @ matrix.T
        both = float64(rows)[members].T @ float64(upstream)[members]
        expected_matrices[g] = both.T if transposed else both
    assert_close(out, expected, dtype)
    assert_close(to_rows, expected_rows, dtype)
    assert_close(to_matrices, expected_matrices, dtype)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_two_at_a_time(name, dtype):
    """Whatever is in rows of no group, that are not numbers included; narrow and odd matrices."""
    rng = np.random.default_rng(1)
    sizes, num_rows, narrow = (256, 0, 128), 512, 384
    ours = products(name, interpret=name == "mosaic_gpu")
    rows = random(rng, num_rows, K, dtype=dtype)
    first, second = (random(rng, 3, K, narrow, dtype=dtype) for _ in range(2))
    hidden, other = (random(rng, num_rows, narrow, dtype=dtype) for _ in range(2))
    for array in (rows, hidden, other):
        array[sum(sizes) :] = np.nan

    @jax.jit
    def everything(rows, hidden, other, first, second, sizes):
        outs = ours.product(rows, (first, second), sizes)
        back = ours.total((hidden, other), (first, second), sizes, transposed=True)
        outers = ours.outer(rows, (hidden, other), sizes)
        return outs, back, outers, *ours.outer(hidden, (rows,), sizes)

    integers = np.asarray(sizes, np.int32)
    given = (rows, hidden, other, first, second, integers)
    outs, back, outers, single = jax.tree.map(np.asarray, everything(*given))
    x, h, o = (float64(array) for array in (rows, hidden, other))
    for g, members in enumerate(groups(sizes)):
        a, b = float64(first[g]), float64(second[g])
        assert_close(outs[0][members], x[members] @ a, dtype)
        assert_close(outs[1][members], x[members] @ b, dtype)
        assert_close(back[members], h[members] @ a.T + o[members] @ b.T, dtype)
        assert_close(outers[0][g], x[members].T @ h[members], dtype)
        assert_close(outers[1][g], x[members].T @ o[members], dtype)
        assert_close(single[g], h[members].T @ x[members], dtype)


def test_layout_has_every_row_once_and_each_group_begins_a_tile():
    rng = np.random.default_rng(2)
    for num_rows, num_groups in ((1000, 7), (5, 3), (300, 1)):
        group = rng.integers(0, num_groups + 1, num_rows)
        made = jax.jit(layout.rows_by_group, static_argnums=1)
        found = made(group.astype(np.int32), num_groups)
        source, place = np.asarray(found.source), np.asarray(found.place)
        R = layout.room(num_rows, num_groups)
        assert source.shape == (R,) and R % layout.ROWS == 0
        ends = np.cumsum(found.sizes)
        for g, (size, end) in enumerate(zip(np.asarray(found.sizes), ends, strict=True)):
            members = np.flatnonzero(group == g)
            assert size % layout.ROWS == 0 and size - len(members) in range(layout.ROWS)
            at = source[end - size : end]
            np.testing.assert_array_equal(at[: len(members)], members)
            assert (at[len(members) :] == num_rows).all()
            np.testing.assert_array_equal(place[members], end - size + np.arange(len(members)))
        assert (source[ends[-1] :] == num_rows).all()
        assert (place[group == num_groups] == R).all()


def test_says_what_it_cannot_run():
    assert "float32" in grouped_mosaic_gpu.why_not("float32", 128)
    assert "96" in grouped_mosaic_gpu.why_not("bfloat16", 128, 96)
    assert not grouped_mosaic_gpu.why_not("bfloat16", 128, 768)
    with pytest.raises(NotImplementedError, match="float32"):
        choose_grouped("mosaic_gpu", "float32", 128)
    with pytest.raises(NotImplementedError, match="it is for GPU and this is cpu"):
        choose_grouped("mosaic_gpu", "bfloat16", 128)
    with pytest.raises(NotImplementedError, match="fastest"):
        choose_grouped("fastest", "float32", 128)
    assert choose_grouped(None, "bfloat16", 128) == "xla"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lowers_for_cuda(dtype):
    """Shapes of an expert layer, with columns that a tile's halves share evenly and narrow ones."""
    sizes = jnp.zeros(4, jnp.int32)

    def everything(rows, hidden, gate, up):
        ours = products("mosaic_gpu")
        first, _ = ours.product(rows, (gate, up), sizes)
        back = ours.total((hidden, first), (gate, up), sizes, transposed=True)
        return back, *ours.outer(back, (hidden, first), sizes)

    shapes = ((512, 256), (512, 384), (4, 256, 384), (4, 256, 384))
    arguments = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    text = jax.jit(everything).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 3


def test_on_a_gpu_takes_the_kernel_or_blocks(monkeypatch):
    gpu = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert choose_grouped(None, "bfloat16", 2048, 768) == "mosaic_gpu"
    assert choose_grouped(None, "float32", 2048, 768) == "blocks"
    assert choose_grouped(None, "bfloat16", 2880, 768) == "blocks"
    gpu.compute_capability = "8.0"
    assert choose_grouped(None, "bfloat16", 2048, 768) == "blocks"
    with pytest.raises(NotImplementedError, match=r"capability 8\.0; it takes 9\.x"):
        choose_grouped("mosaic_gpu", "bfloat16", 2048, 768)


@pytest.mark.parametrize(
    ("rows", "matrices", "sizes", "named"),
    [
        ((4, 3), (2, 5, 6), (2,), "3 entries"),
        ((4, 3), (2, 3, 6), (3,), "sizes"),
        ((4, 3, 1), (2, 3, 6), (2,), "rows have shape"),
    ],
)
def test_refuses_what_does_not_fit(rows, matrices, sizes, named):
    with pytest.raises(ValueError, match=named):
        grouped_matmul(jnp.zeros(rows), jnp.zeros(matrices), jnp.zeros(sizes, jnp.int32))
