"""What a run began with: the checkpoint that its parameters were read from.

Where it lies is a place, and may be another when the run goes on; what it holds may not.
"""

from pathlib import Path
from typing import Final

from rlboost_jax.models.checkpoint_reader import weights_digest
from rlboost_jax.settings.errors import Mistake
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder
from rlboost_jax.storage import at_rest

FILE: Final = "origin.json"


class OriginChanged(Mistake, RuntimeError):
    """A run is to go on from another model than the one it began with."""


def keep_origin(workdir: Path, source: str) -> None:
    """Write `origin.json`, or compare with the one that is there.

    A checkpoint under the name of before is not looked at: the run may go on without it.

    Args:
        source: `model.source`.

    Raises:
        OriginChanged, CheckpointUnusable, ConfigError, Damaged.
    """
    path = workdir / FILE
    before = at_rest.read_sealed(
        path,
        "delete it if model.source names the weights that the run began with, and it is made anew",
    )
    if before is not None and before.get("source") == source:
        return
    digest = weights_digest(source_folder(source, WEIGHTS)) if source else ""
    if before is not None and before.get("weights") != digest:
        raise OriginChanged(
            f"model.source is {source!r}, whose weights are not those of {before.get('source')!r} "
            f"that the run in {workdir} began with; name a copy of these, or choose another "
            "--workdir"
        )
    at_rest.write_sealed(path, {"source": source, "weights": digest})
