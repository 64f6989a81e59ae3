"""The routes of all positions in the KV pool, beside it on the host: see `settings/routing.py`.

A page of keys and values stands for the tokens it was computed from, and so does what is kept here
under its number: a rollout that begins after pages that are still there finds the routes of its
first tokens as it finds their keys and values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, UInt
from numpy.typing import NDArray

from rlboost_jax.engine.engine_rollouts import EngineRollout
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.settings.routing import Routing

PageCopies = Sequence[tuple[int, int]]


class ProgramYield(NamedTuple):
    """Number of tokens that a program yielded for a rollout, before the rollout has them."""

    rollout: EngineRollout
    row: int  # of decode steps
    num_tokens: int  # at least 1


class DispatchRoutes(NamedTuple):
    """The routes that go with what a dispatch yielded, see `dispatches.EngineDispatch`."""

    leads: NDArray[np.uint32]
    routes: NDArray[np.unsignedinteger]


class Routes:
    """Follows the programs in the order in which they were launched."""

    def __init__(self, layout: StepLayout, routing: Routing) -> None:
        self._page_size = layout.page_size
        shape = (layout.num_pages, layout.page_size, *routing.shape)
        self._pages = np.zeros(shape, routing.dtype)  # takes memory as it fills
        self._slots = self._pages.reshape(-1, *routing.shape)
        self._launched: list[tuple[PageCopies, Int[np.ndarray, " T"], Array | None]] = []

    def launched(
        self, copies: PageCopies, kv_slots: Int[np.ndarray, " T"], routes: Array | None
    ) -> None:
        """Record a launched program, which runs after these page copies.

        Args:
            kv_slots: page * page_size + offset of each row of a mixed step; outside the pool where
                a row is nobody's. Empty for decode steps.
            routes: of these rows [T, layers, experts], perhaps not computed yet, and of others.
        """
        self._launched.append((copies, kv_slots, routes))

    def finished(
        self, yields: Sequence[ProgramYield], steps: UInt[np.ndarray, "X R layers A"] | None
    ) -> DispatchRoutes:
        """Take the routes of a finished program; all launched before it have been reported.

        Args:
            steps: routes of decode steps; None of a mixed step.
        """
        for copies, kv_slots, rows in self._launched:
            self._copy(copies)
            inside = kv_slots < len(self._slots)
            if rows is not None:
                self._slots[kv_slots[inside]] = np.asarray(rows)[inside]
        self._launched.clear()
        leads, routes = [], [self._slots[:0]]
        for rollout, row, count in yields:
            newest = rollout.known - 1
            if steps is not None:
                self._slots[self._kv_slots(rollout, newest, count)] = steps[:count, row]
            lead = rollout.transcript.lead
            leads.append(lead)
            routes.append(self._slots[self._kv_slots(rollout, newest - lead, lead + count)])
        return DispatchRoutes(np.array(leads, np.uint32), np.concatenate(routes))

    def move(self, moves: Mapping[int, int]) -> None:
        """Renumber pages after a resize of the pool. Every launched program has been reported."""
        self._copy(list(moves.items()))

    def _copy(self, copies: PageCopies) -> None:
        """Copy routes between pages; all are read before one is written, as on the device."""
        if copies:
            sources, destinations = map(list, zip(*copies, strict=True))
            self._pages[destinations] = self._pages[sources]

    def _kv_slots(self, rollout: EngineRollout, start: int, count: int) -> NDArray[np.int64]:
        """KV slots of `count` positions of the rollout from `start` on."""
        positions = np.arange(start, start + count)
        pages = np.asarray(rollout.pages, np.int64)[positions // self._page_size]
        return pages * self._page_size + positions % self._page_size
