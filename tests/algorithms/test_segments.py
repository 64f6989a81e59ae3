import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.algorithms.segments import segment_means, segment_sums

WIDTH = 16
SUMS = jax.jit(segment_sums)
rows = st.lists(
    st.lists(st.integers(1, 6), max_size=4).filter(lambda sizes: sum(sizes) <= WIDTH),
    min_size=3,
    max_size=3,
)


def laid_out(sizes):
    """Segments 1, 2, … of these sizes along a row, then 0."""
    segments = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return np.pad(segments, (0, WIDTH - len(segments))).astype(np.int32)


@pytest.mark.optimized
@settings(max_examples=30)
@given(rows, st.integers(0, 2**31))
def test_every_position_has_the_sum_of_its_own_sequence(rows, seed):
    segments = np.stack([laid_out(sizes) for sizes in rows])
    values = np.random.default_rng(seed).normal(size=segments.shape).astype(np.float32)
    sums = np.asarray(SUMS(values, segments))
    for row, own in enumerate(segments):
        for segment in np.unique(own):
            here = own == segment
            np.testing.assert_allclose(sums[row, here], values[row, here].sum(), atol=1e-5)
            assert len(set(sums[row, here].tolist())) == 1, "the same bits for all of them"


def test_the_gradient_of_a_sum_is_one_for_each_that_reads_it():
    segments = jnp.array([[1, 1, 1, 2, 2, 0, 0, 0]])
    weights = jnp.arange(8.0)[None]
    found = jax.jit(jax.grad(lambda v: (segment_sums(v, segments) * weights).sum()))(
        jnp.ones((1, 8))
    )
    np.testing.assert_array_equal(found, [[3, 3, 3, 7, 7, 18, 18, 18]])


def test_means_are_of_what_the_mask_names():
    segments = jnp.array([[1, 1, 1, 2, 2, 0]])
    mask = jnp.array([[False, True, True, False, False, False]])
    values = jnp.array([[9.0, 1.0, 2.0, 9.0, 9.0, 9.0]])
    assert jax.jit(segment_means)(values, mask, segments).tolist() == [[1.5, 1.5, 1.5, 0, 0, 0]]
