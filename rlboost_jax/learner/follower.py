"""A process of the trainer other than 0, from its start to its end."""

import contextlib
from pathlib import Path

from rlboost_jax import compile_cache
from rlboost_jax.config.records import RunConfig
from rlboost_jax.data.open import stop_ids_of
from rlboost_jax.learner import kernels
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.following import accept
from rlboost_jax.learner.learners import learners_of
from rlboost_jax.learner.preparation import prepared, programs, restore
from rlboost_jax.learner.processes import World, agreed, check_mesh
from rlboost_jax.models.sharding import make_mesh


class Silence:
    """The console of a process that shows nothing."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, line: str) -> None:
        pass


def follow_training(run: RunConfig, path: str | Path, world: World) -> None:
    """The part of a process other than 0 in `run_training`, until that is over.

    Raises:
        LeaderLost: process 0 ended before that.
        OtherFolder: `path` is not process 0's.
    """
    compile_cache.enable(run.compile_cache_dir)
    run = agreed(run, world)
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    kernels.check(run, mesh)
    learner, critic = programs(run, mesh)
    path = Path(path)
    with (
        accept(world, path) as leader,
        Checkpoints(path / "checkpoints", keep=run.checkpoint.keep) as checkpoints,
    ):
        restored = restore(run, learner, critic, checkpoints)
        state, reference, _ = prepared(run, path, learner, critic, checkpoints, restored, Silence())
        learners = learners_of(
            run, policy=learner, critic=critic, reference=reference, stop_ids=stop_ids_of(run)
        )
        leader.obey(learners, state, checkpoints)
