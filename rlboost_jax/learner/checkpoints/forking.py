"""Fork: start a run from a checkpoint of another, `--fork=RUN@STEP`.

The checkpoint comes into the new folder as a second name for the same files (hard links) where it
can be, as a copy elsewhere, with what belongs to it: the base of its adapters, the model that a KL
term is taken to. From there on neither run knows of the other. With the settings of the other run
the fork goes on bit for bit as that did.

Invariants:
- nothing is written before the checkpoint was seen to be there, sound, and of the same model;
- it has its name in the new folder once it is whole: a start that was killed brings it again.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from rlboost_jax.learner.checkpoints import best, folders
from rlboost_jax.learner.checkpoints.base import FOLDER as BASE
from rlboost_jax.learner.checkpoints.origin import FILE as ORIGIN
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken, damage
from rlboost_jax.platform import durable
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.changes import differences
from rlboost_jax.settings.config_loading import Origin, read_origin, read_run_config, read_run_id
from rlboost_jax.settings.run_config import RunConfig

CHECKPOINTS: Final = "checkpoints"
REFERENCE: Final = "reference"
# What shapes and names in a checkpoint depend on, besides the model.
_SHAPES: Final = ("learner.moment_dtype", "algorithm.lag", "algorithm.mini_batches")
_ALSO: Final = ("algorithm.epochs", "weights.rollout_dtype")


class CannotFork(Mistake, RuntimeError):
    """The other run does not have the checkpoint, or this run cannot begin with it."""


def origin_of(fork: str) -> Origin:
    """Find the checkpoint that `RUN@STEP` names and check that it is sound.

    STEP is a number, "best" or "newest"; RUN alone is its newest checkpoint.

    Raises:
        CannotFork, ConfigError, CheckpointBroken.
    """
    name, _, wanted = fork.rpartition("@") if "@" in fork else (fork, "", "newest")
    run = Path(name).absolute()
    if not name or not (run / "config.json").exists():
        raise CannotFork(f"--fork={fork}: {run} is no workdir of a run; give RUN@STEP")
    kept, known = folders.steps_in(run / CHECKPOINTS), best.best_step(run)
    match wanted:
        case "best" if known is not None:
            step = known[0]
        case "newest" if kept:
            step = kept[-1]
        case _ if wanted.isdecimal() and _place(run, int(wanted)) is not None:
            step = int(wanted)
        case _:
            raise CannotFork(f"--fork={fork}: no such checkpoint is kept; {_shown(kept, known)}")
    place = _place(run, step)
    assert place is not None
    if reason := damage(place.parent, step):
        raise CheckpointBroken(f"--fork={fork}: that checkpoint is broken: {reason}", reason)
    return Origin(workdir=str(run), run_id=read_run_id(run), step=step)


def origin_to_begin_with(fork: str, run: RunConfig, workdir: Path) -> Origin | None:
    """Checkpoint of another run that this one starts, or has started, from; None: from none.

    Args:
        fork: RUN@STEP, or "" for none.

    Raises:
        CannotFork, ConfigError, CheckpointBroken: also where the folder holds another run.
    """
    if not fork:
        return None
    if not (workdir / "config.json").exists():
        origin = origin_of(fork)
        check_fork(origin, run, workdir)
        return origin
    known = read_origin(workdir)
    if known is None or not _names(fork, known):
        what = f"was forked from {known}" if known else "is no fork"
        raise CannotFork(
            f"--fork={fork}: {workdir} holds a run that {what}; choose another --workdir"
        )
    return known  # the same command goes on, though the other run may be gone


def check_fork(
    origin: Origin, now: RunConfig, workdir: Path, before: RunConfig | None = None
) -> None:
    """Raise CannotFork if a run cannot start from a checkpoint of another.

    Args:
        workdir: of the run that is to begin.
        before: settings that go with the checkpoint; None: those of the other run.
    """
    before = before or read_run_config(origin.workdir)
    if workdir.absolute() == Path(origin.workdir):
        raise CannotFork(
            f"--fork={origin} is in --workdir itself; name another folder for the new run"
        )
    wrong = [
        each
        for each in differences(before, now)
        if each.name in (*_SHAPES, *_ALSO)
        or (each.name.startswith("model.") and each.name != "model.source")
    ]
    if before.algorithm.has_critic != now.algorithm.has_critic:
        wrong += [each for each in differences(before, now) if each.name == "algorithm.advantage"]
    if wrong:
        shown = "; ".join(map(str, wrong[:3])) + ("; …" if len(wrong) > 3 else "")
        raise CannotFork(f"--fork={origin} is of another model or learner ({shown}); set it back")
    if now.num_steps <= origin.step:
        raise CannotFork(
            f"num_steps is {now.num_steps}, and {origin.step} steps are done in --fork={origin}; "
            "choose more"
        )


def bring(origin: Origin, workdir: Path) -> None:
    """Link or copy the checkpoint into the forked run's folder, unless it has one.

    Raises:
        CannotFork: it is not there any more, or the disks do not allow it.
    """
    folder = workdir / CHECKPOINTS
    if folders.steps_in(folder) or folders.broken_in(folder):
        return
    run = Path(origin.workdir)
    try:
        if read_run_id(run) != origin.run_id:
            raise CannotFork(f"{run} holds another run than the one to fork; name its folder")
        place = _place(run, origin.step)
        if place is None:
            kept, known = folders.steps_in(run / CHECKPOINTS), best.best_step(run)
            raise CannotFork(f"--fork={origin}: it is gone by now; {_shown(kept, known)}")
        if (run / ORIGIN).exists():
            durable.write(workdir / ORIGIN, (run / ORIGIN).read_bytes())
        for name in (BASE, REFERENCE):
            if (run / name / "0").is_dir():
                _bring(run / name / "0", workdir / name / "0")
        _bring(place, folder / str(origin.step))  # last: with it the run can go on
    except FileNotFoundError as error:  # deleted by a run that goes on, under our hands
        raise CannotFork(f"--fork={origin} is gone by now: {error}; name another") from None


def _names(fork: str, origin: Origin) -> bool:
    """Whether RUN@STEP may mean that checkpoint; the newest or best may be another by now."""
    name, _, wanted = fork.rpartition("@") if "@" in fork else (fork, "", "newest")
    same = str(Path(name).absolute()) == origin.workdir
    return same and (wanted in ("best", "newest") or wanted == str(origin.step))


def _bring(source: Path, target: Path) -> None:
    """Link or copy a file tree, durably and completely or not at all."""
    part = folders.part_of(target)
    durable.make_folder(target.parent)
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part, copy_function=_second_name)
    durable.sync_tree(part)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(target)
    durable.replace(part, target)


def _second_name(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:  # another file system, or one without links
        if isinstance(error, FileNotFoundError):
            raise
        shutil.copyfile(source, target)


def _place(run: Path, step: int) -> Path | None:
    """Path of a run's checkpoint, among its newest or as its best; None if it has neither."""
    places = (run / CHECKPOINTS / str(step), run / best.FOLDER / str(step))
    return next((place for place in places if place.is_dir()), None)


def _shown(kept: list[int], known: tuple[int, float] | None) -> str:
    names = list(map(str, kept))
    if known is not None:
        names.append(f"{known[0]} (best)")
    if not names:
        return "that run has none"
    return f"kept: {', '.join(names)} (checkpoint.keep_every and checkpoint.keep say which are)"
