"""Reading of checkpoints, and diagnosis of damaged ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlboost_jax.learner.checkpoints import folders, leaf_digests, orbax_files
from rlboost_jax.learner.checkpoints.folders import EXTRA, EXTRA_FILE, STATE, steps_in
from rlboost_jax.models.params import Params
from rlboost_jax.platform import at_rest, durable, exhaustion, foreign_json
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.platform.mistakes import Mistake

REASON_LETTERS: Final = 120  # of an error
MOST_EXTRA_BYTES: Final = 2**30  # of the values that are no arrays, which this program wrote


class CheckpointNotFound(Mistake, ValueError):
    """No complete checkpoint of that step exists."""


class CheckpointBroken(Mistake, ValueError):
    """A checkpoint that was complete cannot be read any more, or is of another model.

    Attributes:
        reason: the file or array, and what is wrong with it.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class CheckpointNotWritten(RuntimeError):
    """Files on disk differ from what was to be written; the checkpoint before is sound."""


def read_back(place: Path, share: tuple[int, int]) -> None:
    """Compare a checkpoint just written with its digests: from the device, if possible.

    Args:
        place: of the checkpoint.
        share: see `at_rest.faults`; each process reads its own.

    Raises:
        CheckpointNotWritten
    """
    digests = at_rest.described(place)
    assert digests is not None
    if found := list(at_rest.faults(place, digests["files"], share=share, from_disk=True)):
        raise CheckpointNotWritten(
            f"checkpoint {place.name} was written and does not read back: "
            f"{at_rest.one_line(found)}; look at the disk, the same command goes on from the "
            "checkpoint before"
        )


def damage(folder: Path, step: int, share: tuple[int, int] = (0, 1)) -> str:
    """Line on what is wrong with the place or files of a complete checkpoint; "" if nothing is.

    Args:
        share: see `at_rest.faults`.
    """
    place = folder / str(step)
    try:
        digests = at_rest.described(place)
    except Damaged as error:
        return str(error)
    if digests is None:
        return "" if folders.is_of_before(place) else f"{place / at_rest.FILE} is missing"
    if reason := folders.why_misplaced(digests, step, folders.owner_of(folder)):
        return reason
    files = digests["files"]
    found = [*at_rest.faults(place, files, share=share), *at_rest.strangers(place, files)]
    return at_rest.one_line(found)


def has_digests(folder: Path, step: int) -> bool:
    """Whether a checkpoint has digests of its files; those of early releases have none."""
    return (folder / str(step) / at_rest.FILE).exists()


def newest_step(folder: Path) -> int:
    """Step of the newest complete checkpoint in a folder, perhaps another process's.

    Raises:
        CheckpointNotFound: there is none.
    """
    if not folder.is_dir():
        raise CheckpointNotFound(f"{folder} does not exist; give the workdir of a run")
    newest = max(steps_in(folder), default=None)
    if newest is None:
        raise CheckpointNotFound(
            f"no complete checkpoint is in {folder}; is it a run's, and begun?"
        )
    return newest


def read_params(folder: Path, step: int, abstract: Params) -> Params:
    """Read the parameters of a step alone, on the default device; the folder is not changed.

    Args:
        abstract: their shapes and dtypes.

    Raises:
        CheckpointNotFound: no complete checkpoint of the step is in the folder.
        CheckpointBroken: its files are damaged, or of another model.
    """
    if not folder.is_dir():
        raise CheckpointNotFound(f"{folder} does not exist; give the workdir of a run")
    check(folder, step)
    params: Params = _read(
        folder, step, STATE, lambda path: {"params": orbax_files.read_params(path, abstract)}
    )["params"]
    return params


def read_tree(folder: Path, step: int, name: str, abstract: Any) -> Any:
    """Read a tree of a checkpoint whose files were checked, and compare its leaves' digests.

    Args:
        name: STATE or VERSIONS.
        abstract: shapes, dtypes and shardings to restore onto.

    Raises:
        CheckpointBroken: it is damaged, or of another model.
    """
    return _read(folder, step, name, lambda path: orbax_files.read(path, abstract))


def read_extra(folder: Path, step: int) -> dict[str, Any]:
    """Read the JSON values of a checkpoint whose files were checked. Raises CheckpointBroken."""
    extra: dict[str, Any] = _read(
        folder,
        step,
        EXTRA,
        lambda path: foreign_json.read(path / EXTRA_FILE, dict, limit=MOST_EXTRA_BYTES),
    )
    if not isinstance(extra, dict):
        raise _broken(folder, step, f"{EXTRA}/{EXTRA_FILE} is no JSON object")
    return extra


def check(folder: Path, step: int) -> None:
    """Raise CheckpointNotFound or CheckpointBroken unless a checkpoint is complete and sound."""
    if step not in steps_in(folder):
        raise CheckpointNotFound(
            f"checkpoint {step} is not in {folder}; complete ones: {steps_in(folder)}"
        )
    if reason := damage(folder, step):
        raise _broken(folder, step, reason)


def _read(folder: Path, step: int, name: str, read: Callable[[Path], Any]) -> Any:
    """Read one part of a checkpoint, compared with its digests in memory if there are any."""
    place = folder.absolute() / str(step)  # Orbax takes no other
    try:
        tree = read(place / name)
    except Exception as error:  # Orbax's and tensorstore's, of many kinds
        if exhaustion.number_of(error) not in (None, *durable.LOST):
            raise  # this host cannot read anything now
        reason = " ".join(str(error).split())[:REASON_LETTERS]
        raise _broken(folder, step, reason) from error
    try:
        expected = (at_rest.described(place) or {}).get("leaves", {}).get(name, {})
        wrong = leaf_digests.differing(tree, expected)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"{at_rest.FILE} has no digests of arrays: {error!r:.80}"
        raise _broken(folder, step, reason) from None
    if wrong:
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise _broken(folder, step, f"{name}.{wrong[0]}{others} is not what was in memory")
    return tree


def _broken(folder: Path, step: int, reason: str) -> CheckpointBroken:
    return CheckpointBroken(
        f"checkpoint {step} in {folder} cannot be read; complete ones are {steps_in(folder)}, take "
        f"another or remove the newest: {reason}",
        reason,
    )
