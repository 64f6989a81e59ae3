"""What every side of the comparison of trainers is given."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.learner import draw
from benchmarks.peers.checkpoint import write_folder
from configs import base
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, pack
from rlboost_jax.models.params import Params
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
    write_folder(model, params, folder)
    return Work(
        run=replace(settings, model=model),
        trajectories=draw(
            model, count, prompt_tokens=PROMPT, mean_response=MEAN_RESPONSE, longest=LONGEST
        ),
        folder=folder,
        threads=len(os.sched_getaffinity(0)),
    )
