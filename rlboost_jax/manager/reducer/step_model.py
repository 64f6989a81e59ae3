"""The manager's model of its steps: lengths, speeds, and the learner's pace.

All is measured as a run goes on, and read by plans (`step_plans`). Nothing is predicted before a
whole step has been seen, and never where no policy asks for a prediction: then nothing is measured.
"""

import math
from collections.abc import Collection, Hashable, Iterable

import numpy as np

from rlboost_jax.manager.policies.drag import Drag
from rlboost_jax.manager.policies.forecast import WAITS, ForecastJob
from rlboost_jax.manager.policies.learner_pace import LearnerPace, micro_batches, without_waits
from rlboost_jax.manager.policies.length_prediction import Floats, Indices, Lengths, responses
from rlboost_jax.manager.policies.placement import InstancePace
from rlboost_jax.manager.policies.speeds import BusySpan, Rates, Speeds
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.trust.peer_limits import MAX_OPEN_BATCHES

NEWEST = 0.5  # weight of the last step in the learner's pace


class StepModel:
    """Model of the steps of one run.

    Attributes:
        learns: a policy needs predictions.
        drafts: rollouts may sample several tokens in a step.
    """

    def __init__(self, settings: Settings) -> None:
        self.learns, self.drafts = settings.models, settings.drafts
        self._groups = settings.micro_batch_prompts
        self._fixed = settings.deterministic
        self.lengths = Lengths()
        self.speeds = Speeds()
        self.drag = Drag()
        self.seconds_per_token = 0.0  # of the learner; 0: not known
        self.overhead = 0.0  # seconds of a step besides window, waits and training
        self.most_tokens = math.inf  # of a response
        # For each batch with ended responses: prompt → when its last one ended, so far.
        self._complete: dict[BatchRecord, dict[int, float]] = {}
        self.mean_tokens = 0.0  # of a response with its prompt
        self._prompts: list[tuple[int, int]] = []  # (prompt tokens, responses) of the last step
        self._asked: tuple[Indices, Floats, list[ForecastJob], list[float]] | None = (
            None  # from these
        )

    @property
    def ready(self) -> bool:
        return self.lengths.known and self.seconds_per_token > 0

    @property
    def learnt_prompts(self) -> bool:
        """Whether the prompts and group sizes of a step are known."""
        return bool(self._prompts)

    def measured(self, instance: Instance, span: BusySpan, now: float) -> None:
        """Learn from a finished span of an instance that had its chips to itself.

        All tokens that the instance sampled in it are known.
        """
        self.speeds.add(kind_of(instance), instance.name, span, now)

    def learn(
        self,
        step: BatchRecord,
        *,
        train_seconds: float,
        other_seconds: float,
        present: Collection[str],
    ) -> None:
        """Learn from a finished step.

        Args:
            other_seconds: of the step besides the window, waits and training; less than none
                where the trainer tells of more than this manager has seen, which began later.
        """
        groups = groups_of(r for r in step.rollouts if not r.measures)
        self.lengths.learn(
            responses([[(r.sequences.num_sampled, r.finished) for r in g] for g in groups])
        )
        self.speeds.end_step(present)
        tokens = sum(r.sequences.length for group in groups for r in group)
        if tokens and train_seconds > 0:
            known = self.seconds_per_token > 0
            weight = NEWEST if known else 1.0
            self.seconds_per_token += weight * (train_seconds / tokens - self.seconds_per_token)
            self.overhead += weight * (max(0.0, other_seconds) - self.overhead)
        self.mean_tokens = tokens / max(1, sum(len(group) for group in groups))
        self.most_tokens = float(step.begin.sampling.max_tokens)
        first = [group[0].sequences for group in groups]
        given = [sequences.length - sequences.num_sampled for sequences in first]
        self._prompts = [(tokens, len(g)) for tokens, g in zip(given, groups, strict=True)]
        self._asked = None

    def ended(self, rollout: Rollout, now: float) -> None:
        """Record that a response is finished."""
        if not self.learns:
            return
        if rollout.batch not in self._complete:
            recent = list(self._complete.items())[1 - MAX_OPEN_BATCHES :]
            self._complete = {**dict(recent), rollout.batch: {}}
        self._complete[rollout.batch][rollout.group] = now

    def complete(self, step: BatchRecord) -> dict[int, float]:
        """For each prompt, when the last finished response of its group ended."""
        return self._complete.get(step, {})

    def compare(self, step: BatchRecord, closed: float, planned_drag: float) -> None:
        """Learn from a window that was ended by plan, so that the learner should just not wait:
        when should it have ended, with the groups complete when they were?

        Args:
            closed: when it ended.
            planned_drag: the drag that it was planned with.
        """
        if step not in self._complete or not self.seconds_per_token:
            return
        groups = groups_of(r for r in step.rollouts if r.finished and not r.measures)
        tokens = [float(sum(r.sequences.length for r in group)) for group in groups]
        complete = [(self.complete(step).get(g[0].group, closed), n) for n, g in enumerate(groups)]
        should, critical = without_waits(micro_batches(self.learner, tokens, complete))
        self.drag.learn(planned_drag, closed=closed, should=should, critical=critical)

    @property
    def learner(self) -> LearnerPace:
        return LearnerPace(
            seconds_per_token=self.seconds_per_token,
            micro_batch_groups=self._groups,
            fixed=self._fixed,
        )

    @property
    def mixed(self) -> bool:
        """Whether some instances are known to be much slower than others."""
        return self.speeds.mixed

    def pace(self, instance: Instance) -> InstancePace | None:
        """Pace for rollouts like those of the last step, half-way; None: not known."""
        rates = self.rates(instance)
        if rates is None:
            return None
        rates = rates.times(self.speeds.factor(instance.name))
        row = rates.row + rates.context * self.mean_tokens / 2
        return InstancePace(base=rates.step, row=row, tokens=self.mean_tokens)

    def asked_for(self) -> tuple[Indices, Floats, list[ForecastJob], list[float]]:
        """Requests of a step like the last one.

        Returns groups and lengths of its responses, the rollouts they are, and the tokens of each
        group.
        """
        if self._asked is None:
            state = responses([[(0, False)] * size for _, size in self._prompts])
            lengths = np.minimum(self.lengths.scenario(state), self.most_tokens)
            prompts = np.array([tokens for tokens, _ in self._prompts], float)[state.group]
            jobs = [
                ForecastJob(group=int(g), context=float(p), remaining=float(n), place=WAITS)
                for g, p, n in zip(state.group, prompts, lengths, strict=True)
            ]
            totals = np.bincount(state.group, lengths + prompts).tolist()
            self._asked = state.group, lengths, jobs, totals
        return self._asked

    def knows(self, instance: Instance) -> bool:
        """Whether the pace of exactly this kind was measured."""
        return self.speeds.rates(kind_of(instance)) is not None

    def rates(self, instance: Instance) -> Rates | None:
        """Rates of an instance's kind, or of its reserved or preemptible twin's."""
        kind, reserved = kind_of(instance)
        return self.speeds.rates((kind, reserved)) or self.speeds.rates((kind, not reserved))


def kind_of(instance: Instance) -> tuple[Hashable, bool]:
    return instance.kind, instance.reserved


def groups_of(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    """Group rollouts by prompt, in their order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return [groups[prompt] for prompt in sorted(groups)]
