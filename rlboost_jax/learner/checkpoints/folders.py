"""Layout of a folder of checkpoints: `<step>` each, complete from the moment it has that name.

<step>/state, versions, extra    arrays, older parameters, JSON values
<step>/digests.json              of all its files, and of the arrays as they were in memory
<step>.part                      what is being written, or was when a process died
<step>.broken                    what was complete, and not what was written there; more of the same
                                 step are <step>.broken-2, <step>.broken-3, …

A checkpoint has its step and the id of its run among its digests: one that was copied or renamed to
another place is known by them.
"""

import itertools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlboost_jax.platform import durable
from rlboost_jax.settings.config_loading import read_origin, read_run_id

STATE: Final = "state"
VERSIONS: Final = "versions"
EXTRA: Final = "extra"
EXTRA_FILE: Final = "metadata"  # in EXTRA, as Orbax's own reader of JSON has it
BROKEN: Final = ".broken"
_LEFTOVERS: Final = (f"*{durable.PART}", "*.orbax-checkpoint-tmp*")  # the second: of before
_OF_BEFORE: Final = "_CHECKPOINT_METADATA"  # in a checkpoint of a release that had no digests
_STEP: Final = re.compile(r"0|[1-9][0-9]{0,18}")  # as `str` writes it
_ASIDE: Final = re.compile(rf"({_STEP.pattern}){re.escape(BROKEN)}(-[0-9]+)?")


class Owner(NamedTuple):
    """The run that a folder of checkpoints belongs to.

    Attributes:
        run_id: its own.
        begins: the step of another run that it was forked from; -1: it was not.
    """

    run_id: str
    begins: int


def owner_of(folder: Path) -> Owner | None:
    """The run in the workdir that has `folder`; None if there is no run. Raises ConfigError."""
    workdir = folder.absolute().parent
    if not (workdir / "config.json").exists():
        return None
    origin = read_origin(workdir)
    return Owner(read_run_id(workdir), origin.step if origin else -1)


def why_misplaced(digests: Mapping[str, Any], step: int, owner: Owner | None) -> str:
    """Reason why a checkpoint does not belong in its place; "" if it does.

    Earlier releases wrote neither step nor run: what they wrote is taken as it is.

    Args:
        digests: what its `digests.json` says.
        step: the folder's name.
        owner: of the folder; a fork also has checkpoints of other runs, up to where it begins.
    """
    said, run = digests.get("step", step), digests.get("run")
    if said != step:
        return f"it is the checkpoint of step {said!r:.20}, in the place of another"
    if owner is None or run in (None, owner.run_id) or step <= owner.begins:
        return ""
    return f"it is of another run ({run!r:.14}…), which a new one may begin with by --fork"


def steps_in(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _STEP.fullmatch(path.name))


def superseded(folder: Path, newest: int, keep: int, keep_every: int) -> list[int]:
    """Steps of the complete checkpoints that need not be kept, in order.

    Args:
        newest: the newest step that counts; later ones are left alone.
        keep: how many of the newest are kept.
        keep_every: multiples of it, but for 0, are kept, too; 0: none.
    """
    known = [step for step in steps_in(folder) if step <= newest]
    return [s for s in known[:-keep] if s == 0 or not keep_every or s % keep_every]


def broken_in(folder: Path) -> list[int]:
    """Steps of the checkpoints that were put aside, in order."""
    return sorted({step for step, _ in asides_in(folder)})


def asides_in(folder: Path) -> list[tuple[int, str]]:
    """Step and name of each checkpoint that was put aside, in order."""
    found = (_ASIDE.fullmatch(path.name) for path in folder.glob(f"*{BROKEN}*"))
    return sorted((int(match[1]), match[0]) for match in found if match)


def part_of(place: Path) -> Path:
    """Temporary path at which a checkpoint is written first."""
    return place.with_name(place.name + durable.PART)


def put_aside(place: Path) -> Path:
    """Rename a broken checkpoint and return its new path.

    Others of the same step that were put aside stay: one that is intact in the wrong place may be
    the only copy of another step.
    """
    names = (place.name + BROKEN + (f"-{each}" if each > 1 else "") for each in itertools.count(1))
    aside = next(a for a in map(place.with_name, names) if not os.path.lexists(a))
    durable.replace(place, aside)
    return aside


def remove(place: Path) -> None:
    """Delete a checkpoint; it stops counting as soon as the deletion has begun."""
    part = part_of(place)
    _delete(part)
    place.rename(part)
    _delete(part)


def remove_leftovers(folder: Path) -> None:
    for pattern in _LEFTOVERS:
        for leftover in folder.glob(pattern):
            _delete(leftover)


def _delete(path: Path) -> None:
    """Delete a folder with its content, or a file or link in its place, if there is one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def is_of_before(place: Path) -> bool:
    """Whether a checkpoint was written by an early release that wrote no digests."""
    return (place / _OF_BEFORE).exists()
