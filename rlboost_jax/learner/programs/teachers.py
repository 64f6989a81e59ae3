"""Teachers of on-policy distillation: frozen models that score what the policy has sampled.

The trainer's own devices hold them and score each micro-batch as it arrives. So a score depends on
the micro-batch and the checkpoint alone, not on the servers that sampled it, and no server has to
be trusted about it. With `distillation.scored_by = "servers"` servers hold the teachers, and scores
come with the trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from rlboost_jax.algorithms.kl import distilled_advantages
from rlboost_jax.data.tokenizer_check import check_teacher
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import by_sample, pack
from rlboost_jax.learner.programs.passes import scores_of
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.parameter_sharding import (
    batch_sharding,
    param_shardings,
    program_on,
    replicated,
)
from rlboost_jax.models.params import Params
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.distillation_config import TeacherConfig
from rlboost_jax.settings.huggingface.tensor_files import named_by
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT
from rlboost_jax.settings.teacher_models import TEACHER_SOURCE, teacher_folder, teacher_model


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A teacher on the trainer's devices.

    Attributes:
        scores: program from (parameters, packed batch) to log-probabilities [R, T], nats.
    """

    params: Params
    scores: Any

    @property
    def num_bytes(self) -> int:
        """Bytes of its parameters on the device that holds most of them."""
        held: dict[jax.Device, int] = {}
        for leaf in jax.tree.leaves(self.params):
            for shard in leaf.addressable_shards:
                held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
        return max(held.values(), default=0)


class Teachers:
    """The teachers of a run; none of them is here where servers hold them."""

    def __init__(self, run: RunConfig, teachers: Sequence[Teacher]) -> None:
        self._run, self._teachers = run, tuple(teachers)

    @property
    def num_bytes(self) -> int:
        return sum(teacher.num_bytes for teacher in self._teachers)

    def taught(self, members: Sequence[Trajectory]) -> tuple[tuple[Trajectory, ...], float]:
        """Add the teachers' part to the advantage of each token, or their scores for the loss.

        Returns:
            The trajectories with advantages per token (those without a teacher as they were), and
            the sum of log(policy / teacher) over scored tokens, nats: it estimates the reverse KL.
        """
        run, found, total = self._run, dict[int, Trajectory](), 0.0
        in_loss = run.distillation.loss_weight > 0
        for place in range(len(run.distillation.teachers)):
            own = [t for t in members if run.distillation.teacher_of(t.data) == place]
            scores = self._scores(place, own)
            for t in own:
                advantages, gaps = distilled_advantages(
                    t.logprobs,
                    scores[t.sample],
                    t.advantage if t.advantages is None else t.advantages,
                    weight=0.0 if in_loss else run.distillation.weight,
                    reward_weight=run.distillation.reward_weight,
                )
                teacher_logprobs = scores[t.sample] if in_loss else None
                found[t.sample] = replace(
                    t, advantages=advantages, teacher_logprobs=teacher_logprobs
                )
                total -= float(gaps.sum())
        return tuple(found.get(t.sample, t) for t in members), total

    def _scores(self, place: int, members: Sequence[Trajectory]) -> dict[int, NDArray[np.float32]]:
        """Log-probability of each sampled token of each sample."""
        if self._run.distillation.on_servers:
            found = {t.sample: t.teacher_logprobs for t in members}
            return {sample: scores for sample, scores in found.items() if scores is not None}
        teacher = self._teachers[place]
        batches = pack(
            members,
            rows=self._run.pack_rows,
            row_tokens=self._run.row_tokens,
            row_lengths=self._run.learner.row_lengths,
            loss_aggregation="token_mean",
        )
        scores = [np.asarray(teacher.scores(teacher.params, batch)) for batch in batches]
        return by_sample(batches, scores)


def opened_teachers(run: RunConfig, mesh: Mesh) -> Teachers | None:
    """The teachers over the mesh, in `model.dtype`; None where there are none.

    Raises:
        ConfigError, CheckpointUnusable: a checkpoint cannot be read, or cannot teach this policy.
    """
    if not run.distillation.teachers:
        return None
    if run.task.name in (DATASET, ENVIRONMENT):
        for each in run.distillation.teachers:
            check_teacher(resolved(run)[0], each.source)
    if run.distillation.on_servers:
        return Teachers(run, ())
    return Teachers(run, [_opened(run, each, mesh) for each in run.distillation.teachers])


def _opened(run: RunConfig, teacher: TeacherConfig, mesh: Mesh) -> Teacher:
    folder = teacher_folder(teacher.source)
    model = teacher_model(run, teacher, weights=True)
    shardings = param_shardings(model, mesh)
    with named_by(TEACHER_SOURCE):
        params = read_checkpoint(model, folder, shardings=shardings, dtype=model.dtype)
    learner = replace(run.learner, attention="auto", experts="auto", remat="none")
    program = program_on(
        mesh,
        scores_of(model, learner, run.sampling, mesh),
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    return Teacher(params=params, scores=program)
