"""The page pool over generated sequences of calls."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlboost_jax.engine.pages import OutOfPages, PagePool

NUM_PAGES = 7


class Pool(RuleBasedStateMachine):
    """Against a bag of (holder, page) pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, NUM_PAGES + 2))
    def alloc(self, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfPages, match=f"{count} pages needed, {free} of {NUM_PAGES}"):
                self.pool.alloc(count)
            return
        taken = {page for pages in self.held for page in pages}
        pages = self.pool.alloc(count)
        assert len(set(pages)) == count and not taken & set(pages)
        self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.pool.share(pages)
        self.held.append(list(pages))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def each_page_is_free_or_held(self) -> None:
        holders = Counter(page for pages in self.held for page in pages)
        assert [self.pool.holders(page) for page in range(NUM_PAGES)] == [
            holders[page] for page in range(NUM_PAGES)
        ]
        assert self.pool.num_held == len(holders)
        assert self.pool.num_free + self.pool.num_held == NUM_PAGES


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_refuses_to_share_or_free_what_nobody_holds() -> None:
    pool = PagePool(3)
    (page,) = pool.alloc(1)
    with pytest.raises(ValueError, match="is free"):
        pool.share([2])
    with pytest.raises(ValueError, match="more often than it is held"):
        pool.free([page, page])
    assert pool.holders(page) == 1
    pool.free([page])
    with pytest.raises(ValueError, match=f"page {page} is free"):
        pool.free([page])
