"""The updates that one batch makes: micro-batches in as they are whole, parameters out.

A batch makes `mini_batches` × `epochs` updates. Mini-batch j is made of the micro-batches
[j × n, (j + 1) × n), and so of prompts that were fixed before anything was generated.

Invariants:
- engines go on sampling from version s: no update is applied before the whole batch is in, so
  that what arrives is looked at, and old log-probabilities are taken, with the very parameters
  that sampled it;
- every trajectory is in `epochs` updates, and each update divides by its own tokens or responses;
- gradients are added up in the order of micro-batches, whatever the order of their arrival.

What can be computed before the batch is whole is: gradients of the first update, unless
advantages are whitened, and forward passes for the others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import jax
import numpy as np

from rlboost_jax.config.records import RunConfig
from rlboost_jax.learner.critic import CriticStep
from rlboost_jax.learner.diagnosis import culprits
from rlboost_jax.learner.doubts import tolerated_gap
from rlboost_jax.learner.estimates import ByToken, Estimates, Evaluations
from rlboost_jax.learner.gradients import GradientSum
from rlboost_jax.learner.guards import (
    NotFinite,
    StepNotWhole,
    check_counted,
    check_guards,
    check_judged,
    check_whole,
    kept,
)
from rlboost_jax.learner.micro_batches import MicroBatches
from rlboost_jax.learner.packing import PackedBatch, by_sample, pack, update_divisor
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.streaming import Doubt
from rlboost_jax.learner.trajectory import Group, Trajectory
from rlboost_jax.models.params import Params

Figures = dict[str, float]
Part = tuple[Params, Any]  # gradients and sums


@dataclass(frozen=True, kw_only=True)
class Learners:
    """What updates are made with; the same for all steps of a run."""

    run: RunConfig
    policy: LearnerStep
    critic: CriticStep | None
    reference: Params | None
    estimates: Estimates
    tolerated_gap: float  # nats

    def pack(self, trajectories: Sequence[Trajectory]) -> list[PackedBatch]:
        return pack(
            trajectories,
            rows=self.run.pack_rows,
            row_tokens=self.run.row_tokens,
            row_lengths=self.run.learner.row_lengths,
            loss_aggregation=self.run.algorithm.loss_aggregation,
            routing=self.policy.routing,
        )

    def gradients(self, params: Params, trajectories: Sequence[Trajectory]) -> Part:
        """Of the undivided loss over these trajectories, with its sums."""
        in_loss = None if self.run.algorithm.kl_in_reward else self.reference
        return self.policy.micro_batch(params, in_loss, self.pack(trajectories))

    def critic_gradients(self, state: TrainState, trajectories: Sequence[Trajectory]) -> Part:
        assert self.critic is not None
        return self.critic.micro_batch(state.critic.params, self.pack(trajectories))

    def look(
        self, state: TrainState, groups: Sequence[Group]
    ) -> tuple[tuple[Trajectory, ...], float, float]:
        """Forward passes over a micro-batch, before the first update of its batch.

        Returns:
            Its trajectories with all that follows, the largest |recomputed - behaviour|
            log-probability, and the sum of the KL estimates that went into the reward.
        """
        everything = [t for group in groups for t in group.trajectories]
        batches = self.pack(everything)
        in_reward = self.reference if self.run.algorithm.kl_in_reward else None
        parts = [self.policy.evaluate(state.params, in_reward, batch) for batch in batches]
        found: dict[str, ByToken] = {
            name: by_sample(batches, [np.asarray(part[name]) for part in parts])
            for name in parts[0]
        }
        if self.critic is not None:
            values = [self.critic.values(state.critic.params, batch) for batch in batches]
            found["values"] = by_sample(batches, [np.asarray(part) for part in values])
        evaluations = Evaluations(**found)
        gaps = [np.abs(found["policy"][t.sample] - t.behaviour_logprobs) for t in everything]
        members = [
            t for group in groups for t in self.estimates.evaluated(group.trajectories, evaluations)
        ]
        kl = math.fsum(self.estimates.kl_of(t, evaluations) for t in everything)
        return tuple(members), float(np.concatenate(gaps).max()), kl

    def check(self, state: TrainState, groups: Sequence[Group]) -> list[Doubt]:
        """The same as `doubts`, and quick where there are none."""
        members = [t for group in groups for t in group.trajectories]
        gaps = [self.policy.gaps(state.params, batch) for batch in self.pack(members)]
        if float(np.max([np.asarray(gap).max() for gap in gaps])) <= self.tolerated_gap:
            return []
        return self.doubts(state, groups)

    def doubts(self, state: TrainState, groups: Sequence[Group]) -> list[Doubt]:
        """The responses of a micro-batch that were not sampled as their servers say."""
        doubts = []
        for trajectory in (t for group in groups for t in group.trajectories):
            (batch,) = self.pack([trajectory])
            gaps = np.asarray(self.policy.gaps(state.params, batch))[batch.response_mask]
            wrong = np.flatnonzero(~(gaps <= self.tolerated_gap))
            if wrong.size:
                doubts.append(
                    Doubt(
                        prompt=trajectory.prompt,
                        sample=trajectory.sample,
                        attempt=trajectory.attempt,
                        position=int(wrong[0]),
                        gap=float(gaps.max()),
                    )
                )
        return doubts


def learners_of(
    run: RunConfig,
    *,
    policy: LearnerStep,
    critic: CriticStep | None,
    reference: Params | None,
    stop_ids: Sequence[int],
) -> Learners:
    """What the updates of `run` are made with, on every process."""
    return Learners(
        run=run,
        policy=policy,
        critic=critic,
        reference=reference,
        estimates=Estimates(
            algorithm=run.algorithm,
            max_response_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(stop_ids),
        ),
        tolerated_gap=tolerated_gap(run, policy.mesh.devices.flat[0].platform),
    )


class BatchUpdates:
    """One step's batch on its way into the parameters.

    `train` takes micro-batches in any order; once it has had all, `finish` makes the updates.
    """

    def __init__(
        self,
        learners: Learners,
        state: TrainState,
        *,
        step: int,
        checkpoint: Callable[[], int | None],
        checked: bool = False,
    ) -> None:
        """Args:
        checked: nothing that comes is doubted any more.
        state: whose parameters sample the batch. The updates consume it.
        checkpoint: tells the last complete one, for messages.
        """
        self._algorithm, learner = learners.run.algorithm, learners.run.learner
        self._learners, self._state = learners, state
        self._step, self._checkpoint, self._checked = step, checkpoint, checked
        self.micro_batches = MicroBatches(
            learner.prompts_per_step,
            learner.micro_batch_prompts,
            learners.run.deterministic or self._algorithm.mini_batches > 1,
        )
        self._size = self.micro_batches.num_micro_batches // self._algorithm.mini_batches
        self._members: dict[int, tuple[Trajectory, ...]] = {}  # by micro-batch
        self._gaps: dict[int, float] = {}
        self._kl: dict[int, float] = {}
        self._first = self._sum(learners.policy)
        self._first_of_critic = self._sum(learners.critic)

    def train(self, index: int, groups: tuple[Group, ...]) -> list[Doubt]:
        """Take a micro-batch in, unless some of its responses are doubted.

        Returns:
            The responses that were not sampled as their servers say. Then nothing of the
            micro-batch is kept, and it comes again.
        """
        learners, part, gap, kl = self._learners, None, math.nan, 0.0
        members = tuple(t for group in groups for t in group.trajectories)
        if self._algorithm.looks_first:
            members, gap, kl = learners.look(self._state, groups)
        if index < self._size and not self._algorithm.whiten:
            part = learners.gradients(self._state.params, members)
            gap = gap if self._algorithm.looks_first else float(part[1]["max_logprob_gap"])
        if not (self._checked or gap <= learners.tolerated_gap):  # not a number is no small one
            doubts = learners.doubts(self._state, groups)
            if doubts:
                return doubts
        self._members[index], self._gaps[index], self._kl[index] = members, gap, kl
        if part is not None:
            self._first.add(index, jax.block_until_ready(part))
        if learners.critic is not None and index < self._size:
            critic = learners.critic_gradients(self._state, members)
            self._first_of_critic.add(index, jax.block_until_ready(critic))
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
            host_params: a copy of the parameters that sampled them; None where no process has
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
            prompts=prompts,
            group_size=self._algorithm.group_size,
        )
        check_judged(
            trajectories,
            step=self._step,
            tolerated=self._learners.run.rewards.tolerated_failures,
            checkpoint=self._checkpoint,
        )
        taken = [t.sample for part in self._members.values() for t in part]
        if sorted(taken) != sorted(t.sample for t in trajectories):
            raise StepNotWhole(
                f"step {self._step} cannot be applied: its micro-batches have {len(taken)} "
                f"samples, the batch has {len(trajectories)}, and they are not the same"
            )
        self._whiten()
        made = []
        for update in range(self._algorithm.updates_per_batch):
            mini_batch = update % self._algorithm.mini_batches
            own = {t.sample for part in self._parts(mini_batch) for t in part}
            expected = [t for t in trajectories if t.sample in own]
            made.append(self._update(update, mini_batch, expected, host_params))
        tokens = sum(figures["tokens"] for figures in made)
        figures = {"loss": fmean(figures["loss"] for figures in made)}
        for name in made[0].keys() - {"loss", "tokens"}:
            figures[name] = sum(each[name] for each in made) / tokens
        figures["max_logprob_gap"] = float(np.max(list(self._gaps.values())))
        return self._state, figures

    def _whiten(self) -> None:
        if not self._algorithm.whiten:
            return
        members = [t for part in self._members.values() for t in part]
        members.sort(key=lambda t: (t.prompt, t.sample))
        white = {t.sample: t for t in self._learners.estimates.of_batch(members)}
        for index, part in self._members.items():
            self._members[index] = tuple(white[t.sample] for t in part)

    def _update(
        self,
        update: int,
        mini_batch: int,
        expected: Sequence[Trajectory],
        host_params: Params | None,
    ) -> Figures:
        """One optimizer step of the policy, and one of the critic.

        Returns:
            `loss` (divided), and sums over response tokens.
        """
        learners, learner = self._learners, self._learners.run.learner
        gradients, sums = self._total(update, mini_batch)
        figures = {name: float(value) for name, value in sums.items()}
        del figures["max_logprob_gap"]  # of this update's own policy: no longer the engine's
        check_counted(expected, figures["tokens"], step=self._step)
        if self._algorithm.kl_in_reward:  # of the policy that sampled, in every update
            figures["kl"] = self._mean_kl() * figures["tokens"]
        kl = {"kl": figures["kl"] / figures["tokens"]}
        check_guards(learner, kl, step=self._step, checkpoint=self._checkpoint)
        divisor = float(
            update_divisor(
                expected,
                self._algorithm.loss_aggregation,
                max_response_tokens=learners.run.sampling.max_response_tokens,
            )
        )
        divisor = max(1.0, figures.pop("divisor", divisor))  # less, where some were rejected
        policy = replace(self._state, critic=None)
        policy, metrics = learners.policy.apply(policy, gradients, np.float32(divisor))
        if not (bool(metrics["finite"]) and math.isfinite(figures["loss"])):
            del policy, gradients  # room to look for the reason
            raise self._not_finite(update, figures["loss"], host_params)
        norm = {"gradient_norm": float(metrics["gradient_norm"])}
        check_guards(learner, norm, step=self._step, checkpoint=self._checkpoint)
        critic = self._state.critic
        if learners.critic is not None:
            gradients, sums = self._total_of_critic(update, mini_batch)
            tokens = float(sums["tokens"])
            critic, metrics = learners.critic.apply(critic, gradients, np.float32(max(1.0, tokens)))
            if not bool(metrics["finite"]):
                raise NotFinite(
                    f"step {self._step}: the critic's gradient is not finite (loss "
                    f"{float(sums['value_loss']):.4g}); {kept(self._checkpoint())}"
                )
            figures["value_loss"] = float(sums["value_loss"])
        self._state = replace(policy, critic=critic)
        return {**figures, "loss": figures["loss"] / divisor}

    def _mean_kl(self) -> float:
        """Of the estimates in the reward, nats per token."""
        members = [t for part in self._members.values() for t in part]
        return math.fsum(self._kl.values()) / sum(len(t.response_tokens) for t in members)

    def _total(self, update: int, mini_batch: int) -> Part:
        """Gradients and sums of one update: those that streamed in, or computed now."""
        if update == 0 and not self._algorithm.whiten:
            streamed, self._first = self._first, self._sum(self._learners.policy)
            return streamed.total()
        total = self._sum(self._learners.policy)
        for place, members in enumerate(self._parts(mini_batch)):
            total.add(place, self._learners.gradients(self._state.params, members))
        return total.total()

    def _total_of_critic(self, update: int, mini_batch: int) -> Part:
        if update == 0:
            critic = self._learners.critic
            streamed, self._first_of_critic = self._first_of_critic, self._sum(critic)
            return streamed.total()
        total = self._sum(self._learners.critic)
        for place, members in enumerate(self._parts(mini_batch)):
            total.add(place, self._learners.critic_gradients(self._state, members))
        return total.total()

    def _parts(self, mini_batch: int) -> list[tuple[Trajectory, ...]]:
        first = mini_batch * self._size
        return [self._members[first + place] for place in range(self._size)]

    def _sum(self, programs: LearnerStep | CriticStep | None) -> GradientSum:
        programs = programs or self._learners.policy
        return GradientSum(self._size, programs.combine)

    def _not_finite(self, update: int, loss: float, host_params: Params | None) -> NotFinite:
        """With all that can be found out, from the parameters that servers sampled with."""
        reason = "with several processes no sample is looked for"
        if host_params is not None:
            params = jax.device_put(host_params, self._learners.policy.shardings.params)
            members = [t for _, part in sorted(self._members.items()) for t in part]
            reason = culprits(
                sorted(members, key=lambda t: (t.prompt, t.sample)),
                lambda members: self._learners.gradients(params, members),
                micro_batch_prompts=self._learners.run.learner.micro_batch_prompts,
            )
        several = self._algorithm.updates_per_batch > 1
        which = f", update {update + 1} of its batch" if several else ""
        return NotFinite(
            f"step {self._step}{which}: the gradient is not finite (loss {loss:.4g}); {reason}; "
            f"{kept(self._checkpoint())}"
        )
