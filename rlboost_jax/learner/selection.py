"""Which finished groups a batch is made of: all of them, or those that dynamic sampling takes."""

from collections.abc import Callable, Sequence

from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.dynamic_sampling import DynamicSampling, informative
from rlboost_jax.learner.streaming import Doubt, Members
from rlboost_jax.learner.trajectory import Group, Trajectory


class Everything:
    """The prompts that the step began with. What is doubted shows when they are trained on."""

    def __init__(self, collector: StepCollector) -> None:
        self._collector = collector

    @property
    def complete(self) -> bool:
        return self._collector.complete

    def take(self, group: Group) -> tuple[Members, Sequence[Doubt]]:
        return [group], ()

    def trajectories(self) -> tuple[Trajectory, ...]:
        return self._collector.trajectories()


class Informative:
    """The first informative groups of the prompt stream.

    A made-up response could make a group look informative or not, and so change who else is in
    the batch: each group is checked before it counts.
    """

    def __init__(
        self,
        sampling: DynamicSampling,
        *,
        check: Callable[[tuple[Group, ...]], Sequence[Doubt]],
        request: Callable[[range], None],
    ) -> None:
        """No group counts yet.

        Args:
            check: what the learner doubts of groups.
            request: has more prompts generated, named by their places from the step's cursor.
        """
        self._sampling, self._check, self._request = sampling, check, request
        self._groups: dict[int, Group] = {}  # by prompt, of those that count

    @property
    def complete(self) -> bool:
        return self._sampling.complete

    def take(self, group: Group) -> tuple[Members, Sequence[Doubt]]:
        doubts = self._check((group,))
        if doubts:
            return [], doubts
        self._groups[group.prompt] = group
        differ = informative([t.reward for t in group.trajectories])
        certain = self._sampling.add(group.prompt, differ)
        more = self._sampling.ask()
        if more:
            self._request(more)
        return [
            Group(prompt=rank, trajectories=self._groups[prompt].trajectories)
            for rank, prompt in certain
        ], ()

    def trajectories(self) -> tuple[Trajectory, ...]:
        members = sorted(self._sampling.members)
        return tuple(t for prompt in members for t in self._groups[prompt].trajectories)
