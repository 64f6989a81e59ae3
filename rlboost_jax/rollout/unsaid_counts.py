"""Counts of an engine's dispatches that renewals say: the engine's thread adds, another takes."""

from rlboost_jax.messages import DraftCounts
from rlboost_jax.rollout.outgoing import DispatchLike

Drafts = tuple[int, int, float]  # drafted, accepted, decode steps saved


class UnsaidCounts:
    """Sums over an engine's dispatches, and how much of them renewals have said."""

    def __init__(self) -> None:
        # Since the beginning, and what was said of it. Drafts are replaced as a whole.
        self._discarded = self._said_discarded = 0
        self._drafts: Drafts = (0, 0, 0.0)
        self._said_drafts: tuple[int, int, int] = (0, 0, 0)

    def add(self, dispatch: DispatchLike) -> None:
        """Add the counts of a dispatch."""
        self._discarded += dispatch.discarded
        if (drafts := dispatch.drafts) is not None:
            drafted, accepted, saved = self._drafts
            self._drafts = (
                drafted + drafts.drafted,
                accepted + drafts.accepted,
                saved + drafts.steps_saved,
            )

    def discarded(self) -> int:
        """Number of tokens sampled behind stop strings since the last call."""
        before, self._said_discarded = self._said_discarded, self._discarded
        return self._said_discarded - before

    def drafts(self) -> DraftCounts | None:
        """What drafts came to since the last call; None: there were none."""
        drafted, accepted, saved = self._drafts
        before, self._said_drafts = self._said_drafts, (drafted, accepted, int(saved))
        if before == self._said_drafts:
            return None
        return DraftCounts(
            drafted=drafted - before[0],
            accepted=accepted - before[1],
            steps_saved=int(saved) - before[2],
        )
