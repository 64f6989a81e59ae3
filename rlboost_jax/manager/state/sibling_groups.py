"""Where the responses to each prompt of a batch were placed, and how much has been said of each."""

from rlboost_jax.manager.policies.order import RANKINGS, leaders_first
from rlboost_jax.manager.state.rollouts import BatchRecord


class SiblingGroups:
    """Groups of one batch."""

    def __init__(self) -> None:
        self._size = self._finished = 0  # responses of the batch when it was looked at
        self._texts: dict[int, int] = {}  # tokens of the longest response then, by group
        self._placed: dict[str, dict[int, None]] = {}  # by instance, groups that it got some of

    def has_news(self, batch: BatchRecord) -> bool:
        """Whether prompts have come, or enough responses have ended to look again."""
        ended = batch.num_finished - self._finished
        return len(batch.rollouts) != self._size or ended * RANKINGS >= self._size

    def look(self, batch: BatchRecord) -> dict[int, float]:
        """Look how long responses are; returns the ranks that its samples should have.

        Those that measure the policy get none: they come after all that are trained on.
        """
        self._size, self._finished = len(batch.rollouts), batch.num_finished
        self._texts = dict.fromkeys((rollout.group for rollout in batch.rollouts), 0)
        for rollout in batch.rollouts:
            longest = max(self._texts[rollout.group], rollout.sequences.num_sampled)
            self._texts[rollout.group] = longest
        samples = (rollout.sample for rollout in batch.rollouts if not rollout.measures)
        return leaders_first(samples, batch.begin.group_size, self._texts)

    def at(self, instance: str) -> list[int]:
        """Groups that an instance got a response of; those with most text first."""
        groups = self._placed.get(instance, {})
        return sorted(groups, key=lambda group: -self._texts.get(group, 0))

    def place(self, group: int, instance: str) -> None:
        """Note that an instance gets a response of a group."""
        self._placed.setdefault(instance, {})[group] = None
