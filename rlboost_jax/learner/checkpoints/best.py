"""The checkpoint with the best score on held-out prompts, kept in addition to the newest ones.

`<workdir>/best/<step>` is a second name (hard links) for the files of that checkpoint, which
survives when the first one is deleted, and costs no space before. Where a file system has no such
links it is a copy.
"""

import shutil
from pathlib import Path
from typing import Final

from rlboost_jax.learner.checkpoints import folders
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.platform import at_rest, durable
from rlboost_jax.platform.durable import Damaged

FOLDER: Final = "best"
FILE: Final = "best.json"


class BestCheckpoint:
    """The best of the checkpoints in `<workdir>/checkpoints`.

    Args:
        checkpoints: in their thread the offered one is kept, after earlier saves.
    """

    def __init__(self, workdir: Path, checkpoints: Checkpoints) -> None:
        self._workdir, self._folder = workdir, workdir / FOLDER
        self._checkpoints = checkpoints
        self._known = best_step(workdir)

    def offer(self, step: int, accuracy: float) -> bool:
        """Keep the checkpoint of a step if it exists and is better than the best so far.

        It is kept soon, or the next call of `checkpoints` raises what went wrong. A crash in the
        middle leaves the one before.

        Returns:
            whether it is the best now.
        """
        if not self._checkpoints.has(step):
            return False
        if self._known is not None and accuracy <= self._known[1]:
            return False
        self._known = step, accuracy
        self._checkpoints.after(lambda: self._keep(step, accuracy))
        return True

    def _keep(self, step: int, accuracy: float) -> None:
        place = self._folder / str(step)
        try:
            durable.make_folder(self._folder)
            shutil.rmtree(place, ignore_errors=True)  # of a run that went on from before it
            shutil.copytree(self._checkpoints.place(step), place, copy_function=_link)
            durable.sync_tree(place)
            at_rest.write_sealed(self._folder / FILE, {"step": step, "accuracy": accuracy})
        except BaseException:  # whatever it was, the folder says which one is there
            self._known = best_step(self._workdir)
            raise
        for other in folders.steps_in(self._folder):
            if other != step:
                folders.remove(self._folder / str(other))


def _link(source: str, target: str) -> None:
    durable.link(Path(source), Path(target))


def best_step(workdir: Path) -> tuple[int, float] | None:
    """Step and accuracy of the best checkpoint; None if none was kept.

    Raises:
        Damaged: its record is.
    """
    path = workdir / FOLDER / FILE
    remedy = f"delete {path.parent}, and the next best is kept"
    values = at_rest.read_sealed(path, remedy)
    if values is None:
        return None
    match values:
        case {"step": int(step), "accuracy": int() | float() as accuracy}:
            return step, float(accuracy)
    raise Damaged(f"{path} names no step and accuracy; {remedy}")
