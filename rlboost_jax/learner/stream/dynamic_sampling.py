"""Choice of the prompts that make up a batch of informative groups, and how many to request.

A group whose rewards are all equal has no advantage and teaches nothing; dynamic sampling goes on
to further prompts until the batch is full of groups that do teach. Nothing here receives or
sends anything. Which groups teach is said in `learner/episodes/raw_rewards.py`, to advantages too.

The batch is the first `num_groups` informative groups *in the order of the prompt stream*, not of
arrival. Which prompts it holds therefore depends on nothing but the stream and the policy, and not
on when groups finished.

Invariants:
- a batch is complete with exactly `num_groups` groups;
- a prompt is a member only once every prompt before it is decided, so that the n-th member is
  the n-th for good;
- no prompt is asked for that could turn out not to be needed: a full batch has nothing still being
  generated, and the next step begins right after the last prompt that was asked for.

The trainer's side of it:

    sampling = DynamicSampling(num_groups=64, most_prompts=256)
    begin the step with prompts `sampling.ask()` of the stream, counted from the step's cursor
    for each group that is whole and whose responses the learner believes:
        for rank, prompt in sampling.add(group.prompt, sampling.informative(responses)):
            hand the group of that prompt on, as the rank-th of the batch; without any part in
            the update if `sampling.fills_up(prompt)`
        extend the step by the prompts `sampling.ask()`, if there are any
        if sampling.complete: done
    the next step's cursor is this one's plus `sampling.prompts_used`; a checkpoint keeps it

A disputed response must be settled before its group is added, for its reward may change with it.

Source: Yu et al. 2025, arXiv:2503.14476, section 3.2. There the batch is filled in the order of
arrival, which prefers short responses.
"""

from collections.abc import Callable, Sequence
from functools import partial

from rlboost_jax.algorithms.advantages import differ
from rlboost_jax.learner.episodes.raw_rewards import informative
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.settings.run_config import RunConfig


def _rewards_differ(members: Sequence[Trajectory]) -> bool:
    return differ([t.reward for t in members])


class DynamicSampling:
    """Groups in, as they finish; members of the batch and requests for more prompts out.

    Where the most prompts that are allowed do not have enough informative groups among them, the
    batch is filled up with the first of the others. The step is then whole and the run goes on,
    but they have no part in the update: nothing of them is in its gradient, nor in its divisor.
    """

    def __init__(
        self,
        *,
        num_groups: int,
        most_prompts: int,
        informative: Callable[[Sequence[Trajectory]], bool] = _rewards_differ,
    ) -> None:
        """Start a batch without a group.

        Args:
            num_groups: of the batch.
            most_prompts: of the stream, for one batch; at least `num_groups`.
            informative: whether the responses of a group that count have something to tell apart.
        """
        if not 1 <= num_groups <= most_prompts:
            raise ValueError(
                f"{num_groups} groups of at most {most_prompts} prompts; raise "
                "learner.prompts_per_step to 1 and algorithm.dynamic_sampling_factor to 1 at least"
            )
        self.num_groups, self.most_prompts = num_groups, most_prompts
        self.informative = informative
        self.members: tuple[int, ...] = ()  # prompts, in order; the rank is the place
        self._asked = 0  # prompts [0, asked) of the stream have been asked for
        self._decided: dict[int, bool] = {}  # prompt → informative
        self._front = 0  # prompts [0, front) are decided

    @property
    def complete(self) -> bool:
        return len(self.members) == self.num_groups

    @property
    def prompts_used(self) -> int:
        """Number of prompts of the stream that the batch has used.

        Raises:
            ValueError: the batch is not complete.
        """
        if not self.complete:
            raise ValueError(f"{len(self.members)} of {self.num_groups} groups are there")
        return self._asked

    def fills_up(self, prompt: int) -> bool:
        """Whether a member only fills the batch up, for want of informative groups."""
        return not self._decided[prompt]

    def ask(self) -> range:
        """Prompts to generate now, as their places in the stream from the step's cursor.

        As many as are missing if all that is outstanding turns out informative: with fewer the
        batch cannot become full. Each prompt is asked for once.
        """
        hopes = sum(self._decided.values()) + self._asked - len(self._decided)
        missing = self.num_groups - hopes
        first = self._asked
        self._asked = min(self.most_prompts, first + missing)
        return range(first, self._asked)

    def add(self, prompt: int, informative: bool) -> list[tuple[int, int]]:
        """Add a finished group.

        Returns:
            (rank in the batch, prompt) of the members that are certain because of it.

        Raises:
            ValueError: the prompt was not asked for, or was added before.
        """
        if not 0 <= prompt < self._asked or prompt in self._decided:
            state = "was added before" if prompt in self._decided else "was not asked for"
            raise ValueError(f"prompt {prompt} of {self._asked} {state}")
        self._decided[prompt] = informative
        before = len(self.members)
        while self._front in self._decided and not self.complete:
            if self._decided[self._front]:
                self.members += (self._front,)
            self._front += 1
        if self._front == self.most_prompts and not self.complete:
            missing = self.num_groups - len(self.members)
            others = [p for p in range(self.most_prompts) if not self._decided[p]]
            self.members += tuple(others[:missing])
        return list(enumerate(self.members))[before:]


def dynamic_sampling(run: RunConfig) -> DynamicSampling | None:
    """Dynamic sampling of one step of a run; None if every group is trained on."""
    if not run.algorithm.dynamic_sampling:
        return None
    wanted = run.learner.prompts_per_step
    most = int(wanted * run.algorithm.dynamic_sampling_factor)
    return DynamicSampling(
        num_groups=wanted,
        most_prompts=most,
        informative=partial(informative, algorithm=run.algorithm),
    )
