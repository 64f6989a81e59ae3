import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.learner.update.tree_sum import TreeSum


def add(left, right):
    return {"w": left["w"] + right["w"]}


@st.composite
def parts_and_order(draw):
    """Real gradients: float32 over many magnitudes, where every order rounds differently."""
    num_parts = draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** rng.uniform(-6, 6, (num_parts, 64))
    parts = (rng.normal(size=(num_parts, 64)) * scale).astype(np.float32)
    return parts, draw(st.permutations(range(num_parts)))


def summed(parts, order):
    total = TreeSum(len(parts), combine=add)
    for index in order:
        total.add(index, {"w": parts[index]})
    return total.total()["w"]


def pairwise_by_hand(parts):
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], start=parts[i]) for i in range(0, len(parts), 2)]
    return parts[0]


@given(parts_and_order())
def test_arrival_order_does_not_change_a_bit(case):
    parts, order = case
    expected = pairwise_by_hand(list(parts))
    np.testing.assert_array_equal(summed(parts, order), expected)
    exact = parts.astype(np.float64).sum(axis=0)
    magnitude = np.abs(parts).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(expected, exact, atol=(1e-6 * magnitude).max())


def test_a_running_sum_would_not_do():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(9, 64)).astype(np.float32)
    forwards, backwards = sum(parts, start=np.float32(0)), sum(parts[::-1], start=np.float32(0))
    assert (forwards != backwards).any()


@pytest.mark.parametrize("num_parts", [1, 2, 7, 64, 100])
def test_in_order_it_keeps_one_sum_per_level(num_parts):
    combined = []

    def counted(left, right):
        combined.append(1)
        return add(left, right)

    total = TreeSum(num_parts, combine=counted)
    for index in range(num_parts):
        total.add(index, {"w": np.ones(1)})
        live = index + 1 - len(combined)  # each addition makes one sum of two
        assert live <= math.floor(math.log2(num_parts)) + 1
    assert total.total()["w"] == num_parts
    assert live == 1


@given(st.integers(1, 20).flatmap(lambda n: st.permutations(range(n))))
def test_the_left_of_two_has_the_lower_indices(order):
    total = TreeSum(len(order), combine=lambda left, right: left + right)
    for index in order:
        total.add(index, [index])
    assert total.total() == list(range(len(order)))


def test_parts_are_taken_once_and_all_of_them():
    total = TreeSum(3, combine=add)
    total.add(1, {"w": np.ones(1)})
    with pytest.raises(ValueError, match="part 1 of 3 was added before"):
        total.add(1, {"w": np.ones(1)})
    with pytest.raises(ValueError, match="part 3 of 3 does not exist"):
        total.add(3, {"w": np.ones(1)})
    with pytest.raises(ValueError, match=r"parts \[0, 2\] of 3 are missing"):
        total.total()
