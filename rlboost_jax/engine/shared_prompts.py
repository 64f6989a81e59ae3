"""Prompt pages that the members of a group share.

The first member to run the prompt publishes its pages. They stay held here as long as a member
is in the engine, so that siblings who get a slot later need not run the prompt again; when
pages are short they are evicted first. A rollout that still needs them runs the prompt anew.
"""

from collections import Counter
from collections.abc import Mapping

from rlboost_jax.engine.engine_rollouts import EngineRollout, PromptKey
from rlboost_jax.engine.pages import PagePool


class SharedPrompts:
    """Pages of prompts that more than one rollout of the engine has."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._members: Counter[PromptKey] = Counter()
        self._pages: dict[PromptKey, tuple[int, ...]] = {}  # oldest first

    def join(self, rollout: EngineRollout) -> None:
        self._members[rollout.prompt_key] += 1

    def leave(self, rollout: EngineRollout) -> None:
        """Remove a member that leaves the engine; the last one frees the prompt's pages."""
        key = rollout.prompt_key
        self._members[key] -= 1
        if self._members[key] == 0:
            del self._members[key]
            self._drop(key)

    def find(self, rollout: EngineRollout) -> tuple[int, ...] | None:
        """Pages that hold the whole prompt, or None if no member has run it."""
        return self._pages.get(rollout.prompt_key)

    def publish(self, rollout: EngineRollout, num_pages: int) -> None:
        """Offer the first `num_pages` pages of the rollout, which hold its whole prompt."""
        key = rollout.prompt_key
        if self._members[key] > 1 and key not in self._pages:
            self._pages[key] = tuple(rollout.pages[:num_pages])
            self._pool.share(self._pages[key])

    def release_one(self) -> bool:
        """Release one prompt if that frees a page. False if none does."""
        for key, pages in self._pages.items():
            if any(self._pool.holders(page) == 1 for page in pages):
                self._drop(key)
                return True
        return False

    def move(self, moves: Mapping[int, int]) -> None:
        """Renumber the pages after a resize of the pool."""
        self._pages = {
            key: tuple(moves.get(page, page) for page in pages)
            for key, pages in self._pages.items()
        }

    def _drop(self, key: PromptKey) -> None:
        self._pool.free(self._pages.pop(key, ()))
