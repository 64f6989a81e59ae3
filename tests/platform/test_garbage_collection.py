"""How often the collector of cyclic garbage looks while a process sets itself up."""

import gc
import weakref

import pytest

from rlboost_jax.platform.garbage_collection import OBJECTS, seldom_collected


@pytest.fixture(autouse=True)
def usual():
    """Python's own threshold, and what was frozen before stays frozen after."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.freeze()


class Node:
    def __init__(self):
        self.other = self


def young_collections(count):
    """How often the youngest were looked at while so many cycles were made."""
    seen = []

    def note(phase, info):
        seen.append(phase == "start")

    gc.callbacks.append(note)
    try:
        kept = [Node() for _ in range(count)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == count
    return sum(seen)


def test_it_looks_seldom_and_then_as_before():
    count = OBJECTS // 5
    usual = young_collections(count)
    with seldom_collected():
        seldom = young_collections(count)
    assert seldom <= 1 < 5 < usual
    assert young_collections(count) > 5
    assert gc.get_threshold() == (700, 10, 10)


def test_what_was_made_is_passed_over_and_garbage_of_later_is_not():
    with seldom_collected():
        early = Node()
    assert not any(each is early for each in gc.get_objects())
    later = Node()
    gone = weakref.ref(later)
    del later
    gc.collect()
    assert gone() is None


def test_one_that_ends_badly_changes_nothing():
    with pytest.raises(KeyError), seldom_collected():
        early = Node()
        raise KeyError
    assert any(each is early for each in gc.get_objects())
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, OBJECTS * 10])
def test_who_wants_it_more_seldom_has_it(first):
    gc.set_threshold(first, 10, 10)
    with seldom_collected():
        assert gc.get_threshold() == (first, 10, 10)
