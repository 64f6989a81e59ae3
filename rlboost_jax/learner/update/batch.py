"""The updates that one batch makes: micro-batches in as they are whole, parameters out.

A batch makes `mini_batches` × `epochs` updates. Mini-batch j is made of the micro-batches
[j × n, (j + 1) × n), and so of prompts that were fixed before anything was generated.

Invariants:
- no update is applied before the whole batch is in, so that old log-probabilities are taken with
  the very parameters that the first update moves;
- what arrives is looked at with the very parameters that sampled it: those of the state or, with
  a lag, those of an older version;
- every trajectory is in `epochs` updates, and each update divides by its own tokens or responses;
- gradients are added up in the order of micro-batches, whatever the order of their arrival.

What can be computed before the batch is whole is: gradients of the first update, unless
advantages are whitened or a critic's, and forward passes for the others.
"""

import functools
import math
from collections.abc import Callable, Sequence
from statistics import fmean

import jax

from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.guards import StepNotWhole, check_judged, check_whole
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.stream.micro_batches import micro_batches
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.learner.tolerated_gaps import NO_GAPS, Gaps
from rlboost_jax.learner.update.accumulation import Accumulation, Members
from rlboost_jax.learner.update.diagnosis import culprits
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.learner.update.optimizer_steps import Figures, OptimizerSteps
from rlboost_jax.models.params import Params

Attempt = tuple[int, tuple[int, ...]]  # sample, and attempts of its sequences


class BatchUpdate:
    """Updates by one step's batch.

    `train` takes micro-batches in any order; once it has had all, `finish` makes the updates.
    """

    def __init__(
        self,
        learner: Learner,
        state: TrainState,
        *,
        step: int,
        checkpoint: Callable[[], int | None],
        version: int | None = None,
        sampler: Params | None = None,
    ) -> None:
        """Start a step that has no micro-batch yet.

        Args:
            state: that the updates begin with, and consume.
            checkpoint: tells the last complete one, for messages.
            version: that samples the batch; None: the one with the number of the step.
            sampler: the parameters of that version; None: they are those of the state.
        """
        self._algorithm = learner.run.algorithm
        self._learner, self._state = learner, state
        self._step, self._checkpoint = step, checkpoint
        self._version, self._sampler = step if version is None else version, sampler
        self.micro_batches = micro_batches(learner.run)
        self._size = self.micro_batches.num_micro_batches // self._algorithm.mini_batches
        self._members: dict[int, Members] = {}  # by micro-batch
        self._checked: dict[Attempt, Gaps] = {}  # with a lag
        self._gaps: dict[int, Gaps] = {}  # by micro-batch
        self._kl: dict[int, float] = {}
        self._teacher_kl: dict[int, float] = {}
        self._policy = Accumulation(
            learner.policy_part,
            learner.policy.combine,
            num_parts=self._size,
            streams=not self._algorithm.needs_batch,
        )
        self._critic: Accumulation | None = None
        if learner.critic is not None:
            self._critic = Accumulation(
                learner.critic_part,
                learner.critic.combine,
                num_parts=self._size,
                streams=True,
            )

    def check(self, groups: Sequence[Group]) -> list[DoubtedResponse]:
        """Doubts about groups before they count; a micro-batch may contain them or not."""
        if self._sampler is None:
            return self._learner.check(self._state.params, groups)
        if self._older_gaps(groups).within(self._learner.tolerated):
            return []
        return self._learner.doubts(self._sampler, groups)

    def check_heldout(self, groups: Sequence[Group]) -> list[DoubtedResponse]:
        """Doubts about responses to held-out prompts, which are in no micro-batch.

        They are of the version that samples the batch.
        """
        return self._learner.check(self._sampled_by, groups, heldout=True)

    def train(self, index: int, groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        """Add a micro-batch, unless some of its responses are disputed.

        Returns:
            The responses that were not sampled as their servers say. Then nothing of the
            micro-batch is kept, and it comes again.
        """
        learner, part, gaps, kl = self._learner, None, Gaps(math.nan, math.nan, math.nan), 0.0
        members = tuple(t for group in groups for t in group.trajectories)
        has_gap = self._algorithm.has_evaluation_pass or self._sampler is not None
        if self._algorithm.has_evaluation_pass:
            members, gaps, kl = learner.score(self._state, groups, self._sampler)
        elif self._sampler is not None:
            gaps = self._older_gaps(groups)
        teacher_kl = 0.0
        if learner.teachers is not None:
            members, teacher_kl = learner.teachers.taught(members)
        if self._policy.wants(index):
            part = self._policy.part(self._state.params, members)
            if not has_gap:
                sums = part[1]
                gaps = Gaps(
                    logprob=float(sums["max_logprob_gap"]),
                    choice=float(sums["max_choice_gap"]),
                    mean_choice=float(sums["max_mean_choice_gap"]),
                    outside=int(sums["rounded_choices"]),
                )
        # Dynamic sampling has checked the group already. What is not a number is no small gap.
        if not (self._algorithm.dynamic_sampling or gaps.within(learner.tolerated)):
            doubts = learner.doubts(self._sampled_by, groups)
            if doubts:
                return doubts
        self._members[index], self._gaps[index], self._kl[index] = members, gaps, kl
        self._teacher_kl[index] = teacher_kl
        if part is not None:
            self._policy.add(index, part)
        if self._critic is not None and self._critic.wants(index):
            self._critic.add(index, self._critic.part(self._state.critic.params, members))
        return []

    def finish(
        self,
        trajectories: Sequence[Trajectory],
        *,
        prompts: Sequence[int],
        host_params: Params | None,
    ) -> tuple[TrainState, Figures]:
        """Make all updates of the batch.

        Args:
            trajectories: of the batch, in (prompt, sample) order.
            prompts: that it is to be made of.
            host_params: a copy of the parameters of the state; None where no process has
                one that it may use, and so nothing is looked for if a number is not finite.

        Returns:
            The state after the last one, and figures of the batch.

        Raises:
            StepNotWhole, RewardsFailed, NotFinite, GuardTripped: the state is of no more use;
                the last checkpoint is.
        """
        check_whole(
            trajectories,
            step=self._step,
            version=self._version,
            prompts=prompts,
            group_size=self._algorithm.group_size,
        )
        check_judged(
            trajectories,
            step=self._step,
            tolerated=self._learner.run.rewards.tolerated_failures,
            checkpoint=self._checkpoint,
        )
        taken = sorted(t.sample for t in self.trajectories())
        if taken != sorted(t.sample for t in trajectories):
            raise StepNotWhole(
                f"step {self._step} cannot be applied: its micro-batches have {len(taken)} "
                f"samples, the batch has {len(trajectories)}, and they are not the same"
            )
        self._sampler = None  # nothing is looked at any more: room for the next
        self._compare()
        steps = OptimizerSteps(
            self._learner,
            self._state,
            step=self._step,
            checkpoint=self._checkpoint,
            culprits=lambda: self._culprits(host_params),
            kl=self._mean_kl() if self._algorithm.kl_in_reward else None,
        )
        made = []
        for update in range(self._algorithm.updates_per_batch):
            parts = self._parts(update % self._algorithm.mini_batches)
            made.append(steps.policy(update, self._policy, parts))
            if self._critic is not None:
                made[-1] |= steps.critic(update, self._critic, parts)
        tokens = sum(figures["tokens"] for figures in made)
        figures = {"loss": fmean(figures["loss"] for figures in made)}
        figures["gradient_norm"] = fmean(each["gradient_norm"] for each in made)
        figures["learning_rate"] = made[-1]["learning_rate"]
        for name in made[0].keys() - figures.keys() - {"value_loss", "tokens", "value_tokens"}:
            figures[name] = sum(each[name] for each in made) / tokens
        if self._critic is not None:  # which is not trained on all of them
            tokens = max(1.0, sum(figures["value_tokens"] for figures in made))
            figures["value_loss"] = sum(figures["value_loss"] for figures in made) / tokens
        if self._learner.teachers is not None:
            tokens = sum(t.num_sampled for t in self.trajectories())
            order = sorted(self._teacher_kl)
            figures["teacher_kl"] = math.fsum(self._teacher_kl[i] for i in order) / tokens
        gaps = functools.reduce(Gaps.joined, self._gaps.values())
        figures["max_logprob_gap"], figures["max_choice_gap"] = gaps.logprob, gaps.choice
        figures["max_mean_choice_gap"], figures["rounded_choices"] = gaps.mean_choice, gaps.outside
        return steps.state, figures

    def trajectories(self) -> list[Trajectory]:
        """Trajectories taken so far with their scores, in (prompt, sample) order."""
        members = [t for part in self._members.values() for t in part]
        return sorted(members, key=lambda t: (t.prompt, t.sample))

    @property
    def _sampled_by(self) -> Params:
        return self._state.params if self._sampler is None else self._sampler

    def _older_gaps(self, groups: Sequence[Group]) -> Gaps:
        """Gaps of groups that an older version sampled. Each response is checked once."""
        assert self._sampler is not None
        new = [group for group in groups if not self._checked.keys() >= _attempts(group)]
        if new:
            found = self._learner.gaps(self._sampler, new)
            self._checked |= {a: found[a[0]] for group in new for a in _attempts(group)}
        every = (self._checked[a] for group in groups for a in _attempts(group))
        return functools.reduce(Gaps.joined, every, NO_GAPS)

    def _compare(self) -> None:
        """Set the advantages that need the whole batch."""
        if not self._algorithm.needs_batch:
            return
        known = {t.sample: t for t in self._learner.estimates.of_batch(self.trajectories())}
        for index, part in self._members.items():
            self._members[index] = tuple(known[t.sample] for t in part)

    def _mean_kl(self) -> float:
        """Mean of the KL estimates in the reward, nats per token."""
        tokens = sum(t.num_sampled for t in self.trajectories())
        return math.fsum(self._kl.values()) / tokens

    def _parts(self, mini_batch: int) -> list[Members]:
        first = mini_batch * self._size
        return [self._members[first + place] for place in range(self._size)]

    def _culprits(self, host_params: Params | None) -> str:
        """Diagnosis with the parameters that the gradients are of, as far as possible."""
        if host_params is None:
            return "with several processes no sample is looked for"
        params = jax.device_put(host_params, self._learner.policy.shardings.params)
        return culprits(
            self.trajectories(),
            lambda members: self._learner.policy_part(params, members),
            micro_batch_prompts=self._learner.run.learner.micro_batch_prompts,
        )


def _attempts(group: Group) -> set[Attempt]:
    """Sample and attempt of each response of a group."""
    return {(t.sample, t.attempts) for t in group.trajectories}
