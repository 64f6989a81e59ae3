"""Grouping of a step's groups into micro-batches.

Invariant: every prompt of a step is in exactly one micro-batch.
"""

import math
from collections.abc import Collection, Iterable

from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.settings.run_config import RunConfig

MicroBatch = tuple[int, tuple[Group, ...]]  # index in the update, groups


class MicroBatches:
    """Groups in, as they finish; complete micro-batches out.

    Deterministic: micro-batch i holds prompts [i * size, (i + 1) * size), fixed before
    anything is generated, and is ready when the last of them is. Otherwise the groups that
    finish first make up micro-batch 0, and so on, which waits less. Groups within a
    micro-batch are in prompt order. The last micro-batch may be smaller.
    """

    def __init__(self, num_prompts: int, micro_batch_prompts: int, deterministic: bool) -> None:
        if num_prompts < 1 or micro_batch_prompts < 1:
            raise ValueError(
                f"{num_prompts} prompts in micro-batches of {micro_batch_prompts}: "
                "raise learner.prompts_per_step and learner.micro_batch_prompts to at least 1"
            )
        self.num_prompts = num_prompts
        self.num_micro_batches = math.ceil(num_prompts / micro_batch_prompts)
        self._size, self._deterministic = micro_batch_prompts, deterministic
        self._taken: set[int] = set()
        self._begun = 0  # micro-batches that have had a group
        self._filling: dict[int, list[Group]] = {}

    def add(self, group: Group) -> list[MicroBatch]:
        """Add a finished group; returns the micro-batches that are ready because of it.

        Raises:
            ValueError: the prompt does not exist or was added before.
        """
        if not 0 <= group.prompt < self.num_prompts or group.prompt in self._taken:
            state = "was added before" if group.prompt in self._taken else "does not exist"
            raise ValueError(f"prompt {group.prompt} of {self.num_prompts} {state}")
        self._taken.add(group.prompt)
        index = self._index(group.prompt)
        members = self._filling.setdefault(index, [])
        members.append(group)
        if len(members) < min(self._size, self.num_prompts - index * self._size):
            return []
        del self._filling[index]
        return [(index, tuple(sorted(members, key=lambda group: group.prompt)))]

    def take_back(self, index: int, groups: Iterable[Group], disputed: Collection[int]) -> None:
        """Reopen a micro-batch that was ready: some of its prompts are generated again."""
        groups = tuple(groups)
        self._filling[index] = [group for group in groups if group.prompt not in disputed]
        self._taken.difference_update(disputed)

    def _index(self, prompt: int) -> int:
        """Index of the micro-batch that a finished group goes to."""
        if self._deterministic:
            return prompt // self._size
        if not self._filling:
            self._begun += 1
            return self._begun - 1
        return min(self._filling)


def micro_batches(run: RunConfig) -> MicroBatches:
    """Micro-batches of one batch of a run."""
    return MicroBatches(
        run.learner.prompts_per_step,
        run.learner.micro_batch_prompts,
        run.deterministic or run.algorithm.mini_batches > 1,
    )
