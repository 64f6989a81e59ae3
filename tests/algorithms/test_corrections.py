"""Two responses in a row: w = 4, 0.5 for the first, 1, 1 for the second."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.corrections import correction_weights, kept_weights

SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0]])
MASK = jnp.array([[False, True, True, True, True, False]])
BEHAVIOUR = jnp.full((1, 6), -1.0)
OLD = BEHAVIOUR + jnp.log(jnp.array([[9.0, 4.0, 0.5, 1.0, 1.0, 9.0]]))


def weights(correction, level, low=0.6, high=2.5):
    found, changed = correction_weights(
        OLD, BEHAVIOUR, MASK, SEGMENTS, correction=correction, level=level, low=low, high=high
    )
    return np.asarray(found)[0, 1:5], np.asarray(changed)[0, 1:5].astype(int).tolist()


@pytest.mark.parametrize(
    ("correction", "level", "expected", "changed"),
    [
        ("truncate", "token", [2.5, 0.5, 1, 1], [1, 0, 0, 0]),
        ("truncate", "sequence", [2, 2, 1, 1], [0, 0, 0, 0]),
        ("truncate", "geometric", [2**0.5, 2**0.5, 1, 1], [0, 0, 0, 0]),
        ("mask", "token", [0, 0, 1, 1], [1, 1, 0, 0]),
        ("mask", "sequence", [2, 2, 1, 1], [0, 0, 0, 0]),
        ("reject", "token", [0, 0, 1, 1], [1, 1, 0, 0]),
    ],
)
def test_weights_by_hand(correction, level, expected, changed):
    found, beyond = weights(correction, level)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert beyond == changed


def test_a_sequence_beyond_its_bounds_goes_as_a_whole():
    found, beyond = weights("mask", "sequence", high=1.5)
    np.testing.assert_allclose(found, [0, 0, 1, 1], rtol=1e-6)
    assert beyond == [1, 1, 0, 0]


def test_weights_have_no_gradient():
    def total(old):
        return correction_weights(
            old, BEHAVIOUR, MASK, SEGMENTS, correction="truncate", level="token", low=0.0, high=9.0
        )[0].sum()

    assert (jax.grad(total)(OLD) == 0).all()


@pytest.mark.parametrize(
    ("kept", "aggregation", "expected", "divisor"),
    [
        ([0, 1, 1, 1], "token_mean", [0, 1, 1, 1], 3),
        ([0, 1, 1, 1], "sequence_mean", [0, 1, 0.5, 0.5], 2),
        ([0, 0, 1, 1], "sequence_mean", [0, 0, 0.5, 0.5], 1),
        ([0, 0, 1, 1], "sequence_sum", [0, 0, 1, 1], 1),
        ([0, 0, 0, 0], "token_mean", [0, 0, 0, 0], 0),
    ],
)
def test_the_trap_of_rejection_the_divisor_shrinks_with_what_is_left(
    kept, aggregation, expected, divisor
):
    """Masking changes the weights and leaves the divisor: 4 tokens, 2 responses in any case."""
    inside = np.array([[False, *map(bool, kept), False]])
    found, count = kept_weights(jnp.asarray(inside), SEGMENTS, loss_aggregation=aggregation)
    np.testing.assert_allclose(np.asarray(found)[0, 1:5], expected)
    assert count == divisor
