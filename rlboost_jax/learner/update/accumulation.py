"""Gradient accumulation for the updates of a batch, for its policy or its critic."""

from collections.abc import Callable, Sequence

import jax

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.programs.apply import Part
from rlboost_jax.learner.programs.objective import Sums
from rlboost_jax.learner.update.tree_sum import TreeSum
from rlboost_jax.models.params import Params

Members = tuple[Trajectory, ...]  # of a micro-batch


class Accumulation:
    """Sums of gradients over micro-batches.

    Gradients of the first update are computed as its micro-batches arrive, where that is possible;
    the others when their turn comes. Either way they are added in the order of micro-batches.
    """

    def __init__(
        self,
        gradients: Callable[[Params, Sequence[Trajectory]], Part],
        combine: Callable[[Part, Part], Part],
        *,
        num_parts: int,
        streams: bool,
    ) -> None:
        """Start without gradients of a batch.

        Args:
            gradients: of the undivided loss over trajectories.
            num_parts: micro-batches of an update.
            streams: whether the first update's are known before the batch is whole.
        """
        self._gradients, self._combine = gradients, combine
        self._num_parts = num_parts
        self._streamed = self._sum() if streams else None
        self._total: Params | None = None

    def wants(self, index: int) -> bool:
        """Whether the gradients of this micro-batch are computed as it arrives."""
        return self._streamed is not None and index < self._num_parts

    def part(self, params: Params, members: Members) -> Part:
        return jax.block_until_ready(self._gradients(params, members))

    def add(self, index: int, part: Part) -> None:
        """Add a micro-batch of the first update."""
        assert self._streamed is not None
        self._streamed.add(index, part)

    def total(self, params: Params, parts: Sequence[Members]) -> Sums:
        """Sums over an update's micro-batches; `take` has the gradients.

        Args:
            params: with which those that did not stream in are computed.
        """
        summed, self._streamed = self._streamed, None
        if summed is None:
            summed = self._sum()
            for place, members in enumerate(parts):
                summed.add(place, self._gradients(params, members))
        self._total, sums = summed.total()
        return sums

    def take(self) -> Params:
        """Hand out the gradients of the last `total`, which are no longer held here."""
        gradients, self._total = self._total, None
        assert gradients is not None
        return gradients

    def _sum(self) -> TreeSum:
        return TreeSum(self._num_parts, self._combine)
