"""The page pool: which pages are free, and how many holders each of the others has.

Pure bookkeeping on the host. Always: every page is free or has at least one holder, and the
two kinds add up to all pages. A page is written by one rollout only; the others that hold it
read what it held before that (a shared prompt), so sharing needs no copy of whole pages.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping


class OutOfPages(RuntimeError):
    """More pages were asked for than are free."""


class PagePool:
    """Reference counts of `num_pages` pages, numbered from 0."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Longest free first, so that what a page held can be found again for as long as possible.
        self._free = OrderedDict.fromkeys(range(num_pages))
        self._holders = [0] * num_pages
        self._uses = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_pages - len(self._free)

    def holders(self, page: int) -> int:
        """Number of holders of the page; 0 if it is free."""
        return self._holders[page]

    def uses(self, page: int) -> int:
        """Number of times the page was allocated: while unchanged, so is its content."""
        return self._uses[page]

    def alloc(self, count: int) -> list[int]:
        """Take pages, each with one holder. What they contain is undefined but finite.

        Raises:
            OutOfPages: fewer are free; nothing is taken.
        """
        if count > len(self._free):
            raise OutOfPages(
                f"{count} pages needed, {len(self._free)} of {self.num_pages} free; "
                "raise engine.num_pages or lower engine.slots"
            )
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
            self._uses[page] += 1
        return pages

    def revive(self, pages: Iterable[int]) -> None:
        """Add a holder to each page, held or free, to reuse its content."""
        for page in pages:
            self._free.pop(page, None)
            self._holders[page] += 1

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to each page. Raises ValueError if one is free."""
        pages = list(pages)
        self._require_held(pages)
        for page in pages:
            self._holders[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """Take a holder from each page; the last one makes it free.

        Raises:
            ValueError: a page has no holder left to take, counting repetitions; nothing changes.
        """
        pages = list(pages)
        self._require_held(pages)
        if any(pages.count(page) > self._holders[page] for page in set(pages)):
            raise ValueError(f"pages {pages} name a page more often than it is held")
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free[page] = None

    def moves_below(self, num_pages: int) -> dict[int, int]:
        """Choose a destination among the first `num_pages` pages for each held page beyond them.

        Destinations are the pages that have been free the longest.

        Raises:
            OutOfPages: more than `num_pages` pages are held.
        """
        beyond = [page for page in range(num_pages, self.num_pages) if self._holders[page]]
        free = [page for page in self._free if page < num_pages]
        if len(beyond) > len(free):
            raise OutOfPages(f"{self.num_held} pages are held, {num_pages} are to be left")
        return dict(zip(beyond, free, strict=False))

    def resize(self, num_pages: int, moves: Mapping[int, int]) -> None:
        """Change the number of pages; holders of a moved page hold its destination.

        What pages held that move is held by those that they move to.

        Args:
            moves: as `moves_below` has them.
        """
        for source, destination in moves.items():
            del self._free[destination]
            self._holders[destination] = self._holders[source]
            self._uses[destination] += 1
            self._holders[source] = 0
        new = range(self.num_pages, num_pages)
        left = [page for page in self._free if page < num_pages]
        self._free = OrderedDict.fromkeys([*new, *left])  # nothing is known of the new ones
        self._holders = [*self._holders[:num_pages], *(0 for _ in new)]
        self._uses = [*self._uses[:num_pages], *(0 for _ in new)]
        self.num_pages = num_pages

    def _require_held(self, pages: list[int]) -> None:
        for page in pages:
            if self._holders[page] == 0:
                raise ValueError(f"page {page} is free; only held pages are shared or freed")
