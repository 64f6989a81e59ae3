"""Where the checkpoints of a folder lie: `<step>` each, complete from the moment it has that name.

<step>/state, versions, extra    arrays, older parameters, JSON values
<step>/digests.json              of all its files, and of the arrays as they were in memory
<step>.part                      what is being written, or was when a process died
<step>.broken                    what was complete, and did not hold any more what was written
"""

import shutil
from pathlib import Path
from typing import Final

from rlboost_jax.storage import durable

STATE: Final = "state"
VERSIONS: Final = "versions"
EXTRA: Final = "extra"
EXTRA_FILE: Final = "metadata"  # in EXTRA, as Orbax's own reader of JSON has it
BROKEN: Final = ".broken"
_LEFTOVERS: Final = (f"*{durable.PART}", "*.orbax-checkpoint-tmp*")  # the second: of before
_OF_BEFORE: Final = "_CHECKPOINT_METADATA"  # in a checkpoint of a release that had no digests


def steps_in(folder: Path) -> list[int]:
    """Of the complete checkpoints, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def broken_in(folder: Path) -> list[int]:
    """Steps of the checkpoints that were put aside, in order."""
    names = (path.name.removesuffix(BROKEN) for path in folder.glob(f"*{BROKEN}"))
    return sorted(int(name) for name in names if name.isdigit())


def part_of(place: Path) -> Path:
    """Where a checkpoint is written first."""
    return place.with_name(place.name + durable.PART)


def put_aside(place: Path) -> Path:
    """Rename a broken checkpoint; one of the same step that was there before is deleted."""
    aside = place.with_name(place.name + BROKEN)
    shutil.rmtree(aside, ignore_errors=True)
    durable.replace(place, aside)
    return aside


def remove(place: Path) -> None:
    """Delete a checkpoint; it counts no more as soon as the deletion has begun."""
    part = part_of(place)
    shutil.rmtree(part, ignore_errors=True)
    place.rename(part)
    shutil.rmtree(part, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    for pattern in _LEFTOVERS:
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def is_of_before(place: Path) -> bool:
    """Whether a checkpoint was written by a release that had no digests."""
    return (place / _OF_BEFORE).exists()
