"""Choices made before the first device is touched, and factories of a session's parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.processes.process_group import ProcessGroup, agreed, check_mesh
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.setup import fit, kernels
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.observe.console import Console
from rlboost_jax.observe.tracker import Tracker
from rlboost_jax.observe.trackers import chosen_trackers
from rlboost_jax.platform.jax_switches import devices_found
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.qualification.engine_start import published_run, trainer_run
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.settings.changes import LAYOUT, Change, differences, settings_at
from rlboost_jax.settings.config_loading import Origin
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.weights.snapshots import SnapshotStore

Programs = tuple[PolicyPrograms, CriticPrograms | None]


@dataclass(frozen=True, kw_only=True)
class Makers:
    """Factories of a session's parts, which tests replace."""

    kernels: Callable[[RunConfig, Path, Callable[[str], None]], RunConfig] = trainer_run
    console: Callable[..., Console] = Console
    fits: Callable[..., None] = fit.check_devices
    programs: Callable[..., Any] = programs
    manager: Callable[..., ManagerProcess] = ManagerProcess
    link: Callable[..., ManagerLink] = ManagerLink
    engine: Callable[..., Any] = engine_of
    reserved: Callable[..., ReservedEngines] = ReservedEngines
    snapshots: Callable[..., SnapshotStore] = SnapshotStore
    trackers: Callable[..., list[Tracker]] = chosen_trackers


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """Choices that are settled before anything is written."""

    run: RunConfig  # with the learner's own kernels
    own: RunConfig  # with those of the trainer's engines, too
    published: RunConfig  # of the folder, for later starts and for servers
    mesh: Mesh
    lines: tuple[str, ...]  # for a person: what was chosen and why
    fork: Origin | None = None  # where the run begins, if it has not begun

    def at(self, changes: Sequence[Change], step: int) -> "SessionPlan":
        """Plan with the settings that hold at a step."""
        run, own = (settings_at(each, changes, step) for each in (self.run, self.own))
        same = run.learner.mesh == self.run.learner.mesh
        mesh = self.mesh if same else make_mesh(run.learner.mesh)
        return replace(self, run=run, own=own, mesh=mesh)


def plan_of(
    run: RunConfig, path: Path, world: ProcessGroup, makers: Makers, fork: Origin | None = None
) -> SessionPlan:
    """Settle a run's choices.

    Args:
        fork: a run's checkpoint that this one is to begin with: then it runs the same kernels.

    Raises:
        NotEnoughDevices, IdleProcess, NotEnoughMemory, AttentionNotAvailable, KernelNotAvailable:
            this trainer's devices cannot do it.
    """
    lines: list[str] = []
    begun = Path(fork.workdir) if fork and not (path / "config.json").exists() else path
    own = agreed(makers.kernels(run, begun, lines.append), world)
    published = published_run(run, own)
    run = replace(published, learner=own.learner)
    mesh = _mesh_for(run, world)
    if line := kernels.without_compiled(run):
        lines.append(line)
    makers.fits(run, list(mesh.devices.flat), lines.append)
    return SessionPlan(
        run=run, own=own, published=published, mesh=mesh, lines=tuple(lines), fork=fork
    )


def lost_layout(
    run: RunConfig, changes: Sequence[Change], step: int, world: ProcessGroup, makers: Makers
) -> str:
    """Why a step cannot be repeated with its former layout on the present devices.

    Args:
        run: the newest settings, which these devices can do.

    Returns:
        "" where it can.
    """
    at = settings_at(run, changes, step)
    if not any(each.name in LAYOUT for each in differences(at, run)):
        return ""
    try:
        makers.fits(at, list(_mesh_for(at, world).devices.flat), lambda line: None)
    except Mistake as mistake:
        return str(mistake)
    return ""


def _mesh_for(run: RunConfig, world: ProcessGroup) -> Mesh:
    """Build the mesh. Raises ConfigError, NotEnoughDevices, IdleProcess, KernelNotAvailable."""
    devices_found()
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    kernels.check(run, mesh)
    return mesh
