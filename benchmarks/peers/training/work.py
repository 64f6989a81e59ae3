"""What every side of the comparison of trainers is given."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.learner import draw
from benchmarks.peers.checkpoint import write_folder
from configs import base
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, pack
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.models.params import Params
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.settings.load import run_config_from_dict
from rlboost_jax.settings.model import ModelConfig
from rlboost_jax.settings.run import RunConfig

PROMPT, MEAN_RESPONSE, LONGEST = 64, 128, 512  # tokens
ROWS = (1, 2, 4)  # of a packed batch
Update = Callable[[], float]  # the norm of its gradient before clipping


@dataclass(frozen=True, kw_only=True)
class Work:
    """One update; `folder` has the weights that it begins with."""

    run: RunConfig
    trajectories: Sequence[Trajectory]
    folder: Path
    threads: int

    @property
    def tokens(self) -> int:
        """That were sampled; the divisor of the loss."""
        return sum(trajectory.num_sampled for trajectory in self.trajectories)

    def packed(self, rows: int) -> list[PackedBatch]:
        return pack(self.trajectories, rows=rows, row_tokens=LONGEST, loss_aggregation="token_mean")


def make_work(model: ModelConfig, params: Params, count: int, folder: Path) -> Work:
    settings = run_config_from_dict(base.get_config().to_dict())
    run = replace(settings, model=model)
    write_folder(model, params, folder)
    drawn = draw(model, count, prompt_tokens=PROMPT, mean_response=MEAN_RESPONSE, longest=LONGEST)
    return Work(
        run=run,
        trajectories=as_sampled(run, params, drawn),
        folder=folder,
        threads=len(os.sched_getaffinity(0)),
    )


def learner_programs(run: RunConfig, rows: int) -> PolicyPrograms:
    return PolicyPrograms(
        run.model,
        replace(run.learner, pack_rows=rows, row_tokens=LONGEST),
        run.algorithm,
        run.sampling,
        num_updates=10**6,
        mesh=make_mesh((1, 1, 1)),
    )


def as_sampled(
    run: RunConfig, params: Params, trajectories: Sequence[Trajectory]
) -> list[Trajectory]:
    """With log-probabilities of these parameters: from others nearly all ratios were clipped."""
    programs = learner_programs(run, 1)

    def sampled(one: Trajectory) -> Trajectory:
        (batch,) = pack([one], rows=1, row_tokens=LONGEST, loss_aggregation="token_mean")
        found = np.asarray(programs.logprobs(params, None, batch)["policy"])
        return replace(one, sequence=replace(one.sequence, logprobs=found[batch.response_mask]))

    return [sampled(one) for one in trajectories]
