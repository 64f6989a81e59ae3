"""What a run began with: the checkpoint that its parameters were read from.

Where it lies is a place, and may be another when the run goes on; what it holds may not.
"""

import json
from pathlib import Path
from typing import Final

from rlboost_jax.models.checkpoint_reader import weights_digest
from rlboost_jax.settings.errors import Mistake
from rlboost_jax.settings.sources import WEIGHTS, source_folder

FILE: Final = "origin.json"


class OriginChanged(Mistake, RuntimeError):
    """A run is to go on from another model than the one it began with."""


def keep_origin(workdir: Path, source: str) -> None:
    """Write `origin.json`, or compare with the one that is there.

    A checkpoint under the name of before is not looked at: the run may go on without it.

    Args:
        source: `model.source`.

    Raises:
        OriginChanged, CheckpointUnusable, ConfigError.
    """
    path = workdir / FILE
    before = json.loads(path.read_text()) if path.exists() else None
    if before is not None and before["source"] == source:
        return
    digest = weights_digest(source_folder(source, WEIGHTS)) if source else ""
    if before is not None and before["weights"] != digest:
        raise OriginChanged(
            f"model.source is {source!r}, whose weights are not those of {before['source']!r} that "
            f"the run in {workdir} began with; name a copy of these, or choose another --workdir"
        )
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"source": source, "weights": digest}, indent=2) + "\n")
    part.replace(path)
