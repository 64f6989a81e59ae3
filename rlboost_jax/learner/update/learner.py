"""The learner: makes the updates of a run, and checks trajectories before them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlboost_jax.learner.episodes.estimates import ByToken, Estimates, ResponseScores
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.packing import PackedBatch, by_sample, pack
from rlboost_jax.learner.programs.apply import Part
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.programs.teachers import Teachers
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.learner.tolerated_gaps import ANY_CHOICE, Gaps, tolerated_gaps
from rlboost_jax.messages import checksum
from rlboost_jax.models.params import Params
from rlboost_jax.settings.run_config import RunConfig

_NAMES = ("logprob", "choice", "mean_choice")  # of what `PolicyPrograms.gaps` returns


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Programs and settings that updates are made with; the same for all steps of a run."""

    run: RunConfig
    policy: PolicyPrograms
    critic: CriticPrograms | None
    reference: Params | None
    estimates: Estimates
    tolerated: Gaps
    teachers: Teachers | None = None

    def pack(self, trajectories: Sequence[Trajectory]) -> list[PackedBatch]:
        return pack(
            trajectories,
            rows=self.run.pack_rows,
            row_tokens=self.run.row_tokens,
            row_lengths=self.run.learner.row_lengths,
            loss_aggregation=self.run.algorithm.loss_aggregation,
            routing=self.policy.routing,
            seed=self.run.seed,
        )

    def policy_part(self, params: Params, trajectories: Sequence[Trajectory]) -> Part:
        """Gradients of the undivided loss over these trajectories, with its sums."""
        in_loss = None if self.run.algorithm.kl_in_reward else self.reference
        return self.policy.accumulate(params, in_loss, self.pack(trajectories))

    def critic_part(self, params: Params, trajectories: Sequence[Trajectory]) -> Part:
        """Gradients of the critic's undivided loss over these trajectories, with its sums."""
        assert self.critic is not None
        return self.critic.accumulate(params, self.pack(trajectories))

    def score(
        self, state: TrainState, groups: Sequence[Group], sampler: Params | None = None
    ) -> tuple[tuple[Trajectory, ...], Gaps, float]:
        """Run the forward passes over a micro-batch, before the first update of its batch.

        Args:
            sampler: the parameters that sampled it; None: those of the state.

        Returns:
            Its trajectories with all that follows, the largest gaps, and the sum of the KL
            estimates that went into the reward. Both are of the parameters that sampled.
        """
        everything = [t for group in groups for t in group.trajectories]
        batches = self.pack(everything)
        in_reward = self.reference if self.run.algorithm.kl_in_reward else None
        sampled = self._logprobs(state.params if sampler is None else sampler, in_reward, batches)
        found = dict(sampled)
        gaps = functools.reduce(Gaps.joined, _gaps(*map(found.pop, _NAMES)).values())
        if sampler is not None:
            found["policy"] = {}
            if self.run.algorithm.old_policy == "recomputed":
                found["policy"] = self._logprobs(state.params, None, batches)["policy"]
        if self.critic is not None:
            values = [self.critic.values(state.critic.params, batch) for batch in batches]
            found["values"] = by_sample(batches, [np.asarray(part) for part in values])
        scores = ResponseScores(**found)
        members = [
            t for group in groups for t in self.estimates.evaluated(group.trajectories, scores)
        ]
        kl = math.fsum(self.estimates.kl_of(t, scores) for t in everything)
        return tuple(members), gaps, kl

    def gaps(self, params: Params, groups: Sequence[Group]) -> dict[int, Gaps]:
        """Gaps of each sample of some groups; NaN where a number is."""
        return _gaps(*self._by_token(params, [t for group in groups for t in group.trajectories]))

    def check(
        self, params: Params, groups: Sequence[Group], *, heldout: bool = False
    ) -> list[DoubtedResponse]:
        """Doubts, as `doubts` finds them, but faster if there are none."""
        members = [t for group in groups for t in group.trajectories]
        found = _gaps(*self._by_token(params, members, heldout)).values()
        fine = all(gaps.within(self._bounds(heldout)) for gaps in found)
        return [] if fine else self.doubts(params, groups, heldout=heldout)

    def doubts(
        self, params: Params, groups: Sequence[Group], *, heldout: bool = False
    ) -> list[DoubtedResponse]:
        """Responses of a micro-batch that were not sampled as their servers report.

        Args:
            params: that sampled them, if what their servers say is true.
            heldout: they answer held-out prompts, and were sampled as `evaluation` has it.
        """
        everything = (t for group in groups for t in group.trajectories)
        found = (self._doubt(params, trajectory, heldout) for trajectory in everything)
        return [doubt for doubt in found if doubt is not None]

    def _bounds(self, heldout: bool) -> Gaps:
        """Bounds of the gaps. A greedy choice is bounded in nats, as a log-probability is."""
        if heldout and self.run.evaluation.greedy:
            return self.tolerated._replace(choice=ANY_CHOICE)
        return self.tolerated

    def _doubt(self, params: Params, t: Trajectory, heldout: bool) -> DoubtedResponse | None:
        """Doubt about the first wrong sequence of an episode: later ones follow from it."""
        gaps, choices, means = (found[t.sample] for found in self._by_token(params, [t], heldout))
        bounds = self._bounds(heldout)
        wrong = ~((gaps <= bounds.logprob) & (choices <= bounds.choice))
        start = 0
        for place, sequence in enumerate(t.sequences):
            own = slice(start, start := start + sequence.num_sampled)
            if not wrong[own].any() and not (means[own] <= bounds.mean_choice).all():
                wrong[start - len(choices[own]) + np.argmax(choices[own])] = True
            if wrong[own].any():
                after_prompt = sequence.sampled_positions - sequence.runs[0]
                return DoubtedResponse(
                    prompt=t.prompt,
                    sample=t.sample,
                    sequence=place,
                    attempt=t.attempts[place],
                    checksum=checksum(
                        sequence.continuation.astype("<i4").tobytes(),
                        sequence.logprobs.astype("<f4").tobytes(),
                    ),
                    position=int(after_prompt[np.argmax(wrong[own])]),
                    gap=float(gaps[own].max()),
                    choice_gap=float(choices[own].max()),
                )
        return None

    def _by_token(
        self, params: Params, members: Sequence[Trajectory], heldout: bool = False
    ) -> tuple[ByToken, ...]:
        """Gaps of each sampled token of each sample, in the order of `Gaps`."""
        program = self.policy.heldout_gaps if heldout else self.policy.gaps
        assert program is not None, "nothing is evaluated"
        batches = self.pack(members)
        found = [program(params, batch) for batch in batches]
        return tuple(
            by_sample(batches, [np.asarray(each[name]) for each in found]) for name in _NAMES
        )

    def _logprobs(
        self, params: Params, reference: Params | None, batches: Sequence[PackedBatch]
    ) -> dict[str, ByToken]:
        parts = [self.policy.logprobs(params, reference, batch) for batch in batches]
        return {
            name: by_sample(batches, [np.asarray(part[name]) for part in parts])
            for name in parts[0]
        }


def learner_of(
    run: RunConfig,
    *,
    policy: PolicyPrograms,
    critic: CriticPrograms | None,
    reference: Params | None,
    stop_ids: Sequence[int],
    stops: bytes = b"",
    teachers: Teachers | None = None,
) -> Learner:
    """Build the learner of `run`, in every process."""
    return Learner(
        run=run,
        policy=policy,
        critic=critic,
        reference=reference,
        estimates=Estimates(
            algorithm=run.algorithm,
            max_response_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(stop_ids),
            stops=stops,
        ),
        tolerated=tolerated_gaps(run, policy.mesh.devices.flat[0].platform),
        teachers=teachers,
    )


def _gaps(logprobs: ByToken, choices: ByToken, means: ByToken) -> dict[int, Gaps]:
    return {
        sample: Gaps(
            logprob=float(gaps.max()),
            choice=float(choices[sample].max()),
            mean_choice=float(means[sample].max()),
            outside=int((choices[sample] > 0).sum()),
        )
        for sample, gaps in logprobs.items()
    }
