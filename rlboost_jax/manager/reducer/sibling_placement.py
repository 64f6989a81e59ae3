"""Placement of a prompt's responses for drafts: one leads, and the others follow where it is.

An engine drafts a response from its siblings there (`rlboost_jax.engine.drafts`). So one response
of each prompt begins first. Load balance chooses the instance, as ever; who goes there is, of
those whose turn it is, a sibling of what was placed there before. It changes no token, as noise is
named by what a token is.
"""

from collections.abc import Sequence

from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.sibling_groups import SiblingGroups


class SiblingPlacement:
    """The order and the instances of the responses in a ledger's batches."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._batches: dict[BatchRecord, SiblingGroups] = {}

    def rank(self, batch: BatchRecord) -> None:
        """Put the queue in order, again where prompts or enough finished responses have come."""
        groups = self._of(batch)
        if groups.has_news(batch):
            batch.rank(groups.look(batch))

    def take(self, batch: BatchRecord, instances: Sequence[str]) -> list[Rollout]:
        """Take a waiting rollout for each of these places, a sibling where there is one."""
        groups = self._of(batch)
        taken: list[Rollout] = []
        for name in instances:
            rollout = batch.take_one(groups.at(name))
            groups.place(rollout.group, name)
            taken.append(rollout)
        return taken

    def _of(self, batch: BatchRecord) -> SiblingGroups:
        if batch not in self._batches:
            others = {b: known for b, known in self._batches.items() if self._ledger.works_on(b)}
            self._batches = {**others, batch: SiblingGroups()}
        return self._batches[batch]
