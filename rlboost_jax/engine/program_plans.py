"""What a device program is to run, and what limits it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.engine.engine_rollouts import EngineRollout
from rlboost_jax.sequences.shared_limits import MAX_POSITIONS


@dataclass(frozen=True, kw_only=True)
class ScheduledTokens:
    """Consecutive tokens of a rollout to be run."""

    rollout: EngineRollout
    start: int  # first of the known tokens to run
    count: int
    budget: int  # most tokens it may yield
    follows: int | None = None  # row of the plan before that ends with its first token; None: known

    @property
    def run_before(self) -> int:
        """Number of the tokens that were already run before an eviction."""
        return max(0, min(self.start + self.count, self.rollout.most_computed) - self.start)

    def after(self, row: int, most: int) -> "ScheduledTokens":
        """Return what comes after it if it yields all it may, with a budget of at most `most`.

        Args:
            row: its own in its plan.
        """
        rollout, start = self.rollout, self.start + self.budget
        budget = min(most, rollout.known + rollout.room - start - 1)
        return ScheduledTokens(rollout=rollout, start=start, count=1, budget=budget, follows=row)


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One device program: the pages to copy beforehand, and what it runs."""

    mixed: bool
    copies: tuple[tuple[int, int], ...]  # (source page, destination page)
    work: tuple[ScheduledTokens, ...]  # prefill first
    prefilled_again: int  # tokens run a second time because of an eviction
    texts: NDArray[np.int32] | None = None  # that drafts are made from; None: no drafts
    likely: int = MAX_POSITIONS  # tokens of a rollout, as far as its budget goes

    @property
    def most_tokens(self) -> int:
        return sum(work.budget for work in self.work)

    @property
    def prefill(self) -> tuple[ScheduledTokens, ...]:
        """Chunks of known tokens; the rest of the work are the newest tokens of rollouts."""
        return tuple(work for work in self.work if work.count > 1 or work.budget == 0)


@dataclass(frozen=True, kw_only=True)
class ProgramAllowance:
    """Limits of the next program on a device that the engine shares with others."""

    steps: int  # of decode steps
    rows: int  # rollouts that sample
    prefill_tokens: int  # known tokens to be run in a mixed step; 0: none is allowed
