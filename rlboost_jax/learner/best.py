"""The checkpoint whose policy did best on held-out prompts, kept beside the newest ones.

`<workdir>/best/<step>` is a second name (hard links) for the files of that checkpoint, which
survives when the first one is deleted, and costs no space before.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Final

from rlboost_jax.learner.checkpoints import Checkpoints

FOLDER: Final = "best"
FILE: Final = "best.json"


class BestCheckpoint:
    """Of the checkpoints in `<workdir>/checkpoints`.

    Args:
        checkpoints: whose saves are waited for.
    """

    def __init__(self, workdir: Path, checkpoints: Checkpoints) -> None:
        self._source, self._folder = workdir / "checkpoints", workdir / FOLDER
        self._checkpoints = checkpoints

    def offer(self, step: int, accuracy: float) -> bool:
        """Keep the checkpoint of a step if it exists and none before was as good.

        A crash in the middle leaves the one before.

        Returns:
            whether it is the best now.
        """
        self._checkpoints.wait()
        source = self._source / str(step)
        known = best_step(self._folder.parent)
        if not source.is_dir() or (known is not None and accuracy <= known[1]):
            return False
        self._folder.mkdir(exist_ok=True)
        place = self._folder / str(step)
        shutil.rmtree(place, ignore_errors=True)  # of a run that went on from before it
        shutil.copytree(source, place, copy_function=os.link)
        part = self._folder / f"{FILE}.part"
        part.write_text(json.dumps({"step": step, "accuracy": accuracy}) + "\n")
        part.replace(self._folder / FILE)
        for other in self._folder.iterdir():
            if other.is_dir() and other != place:
                shutil.rmtree(other)
        return True


def best_step(workdir: Path) -> tuple[int, float] | None:
    """Step and accuracy of the best checkpoint; None where none was kept."""
    try:
        values = json.loads((workdir / FOLDER / FILE).read_text())
    except FileNotFoundError:
        return None
    return int(values["step"]), float(values["accuracy"])
