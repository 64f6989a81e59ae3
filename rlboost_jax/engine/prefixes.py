"""Prefix cache: full pages, found by the tokens they were computed from.

A page of keys and values is a function of the weights and of all tokens up to its last one. Each
full page is therefore known by a digest of these tokens: a rollout that comes back, after an
eviction or from another engine, goes on from the pages that still hold its beginning. Pages
stay findable after their last holder has left, until the pool gives them to someone else.
"""

import hashlib
from collections.abc import Mapping

from rlboost_jax.engine.engine_rollouts import EngineRollout
from rlboost_jax.engine.pages import PagePool

DIGEST_BYTES = 16  # equal digests of other tokens would be other bits: none in practice


class Prefixes:
    """Map from a digest of tokens to the page computed from them. At most one entry per page."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool, self._page_size = pool, page_size
        self._pages: dict[bytes, int] = {}
        self._entries: dict[int, tuple[bytes, int]] = {}  # page → digest, use of the page

    def find(self, rollout: EngineRollout) -> tuple[int, ...]:
        """Pages of the longest cached prefix of the rollout, its newest token excluded."""
        digests = self._digests(rollout, (rollout.known - 1) // self._page_size)
        pages: list[int] = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None or self._entries[page] != (digest, self._pool.uses(page)):
                break
            pages.append(page)
        return tuple(pages)

    def remember(self, rollout: EngineRollout) -> None:
        """Enter the full pages computed since the rollout was last entered."""
        full = rollout.computed // self._page_size
        if full <= rollout.remembered:
            return
        digests = self._digests(rollout, full)
        for index in range(rollout.remembered, full):
            page, digest = rollout.pages[index], digests[index]
            before = self._entries.get(page)
            if before is not None and self._pages.get(before[0]) == page:
                del self._pages[before[0]]
            self._pages[digest] = page
            self._entries[page] = digest, self._pool.uses(page)
        rollout.remembered = full

    def forget(self) -> None:
        """Drop all entries, because new weights make the pages' content useless."""
        self._pages.clear()
        self._entries.clear()

    def resize(self, num_pages: int, moves: Mapping[int, int]) -> None:
        """Follow the pool's own `resize`: pages moved, and those from `num_pages` on are gone."""
        for source, destination in moves.items():
            self._drop(destination)
            if (entry := self._entries.pop(source, None)) is not None:
                digest = entry[0]
                self._entries[destination] = digest, self._pool.uses(destination)
                if self._pages.get(digest) == source:
                    self._pages[digest] = destination
        for page in [page for page in self._entries if page >= num_pages]:
            self._drop(page)

    def _drop(self, page: int) -> None:
        """Remove the entry of a page."""
        entry = self._entries.pop(page, None)
        if entry is not None and self._pages.get(entry[0]) == page:
            del self._pages[entry[0]]

    def _digests(self, rollout: EngineRollout, count: int) -> list[bytes]:
        """Digests of the first `count` pages of tokens, each chained to the one before."""
        digests, size = rollout.digests, self._page_size
        for index in range(len(digests), count):
            digest = hashlib.blake2b(digests[-1] if digests else b"", digest_size=DIGEST_BYTES)
            digest.update(rollout.transcript.between(index * size, (index + 1) * size))
            digests.append(digest.digest())
        return digests[:count]
