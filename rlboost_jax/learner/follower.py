"""A process of the trainer other than 0, from its start to its end."""

import contextlib
from pathlib import Path

from rlboost_jax import compile_cache
from rlboost_jax.data.open import stop_ids_of
from rlboost_jax.learner import kernels
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.following import accept
from rlboost_jax.learner.preparation import prepared, programs, restore
from rlboost_jax.learner.processes import World, agreed, check_mesh
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.settings.run import RunConfig


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
    policy, critic = programs(run, mesh)
    path = Path(path)
    with (
        accept(world, path) as leader,
        Checkpoints(path / "checkpoints", keep=run.checkpoint.keep) as checkpoints,
    ):
        restored = restore(run, policy, critic, checkpoints)
        ready = prepared(run, path, policy, critic, checkpoints, restored, Silence())
        learner = learner_of(
            run,
            policy=ready.policy,
            critic=ready.critic,
            reference=ready.reference,
            stop_ids=stop_ids_of(run),
        )
        leader.obey(learner, ready.state, checkpoints)
