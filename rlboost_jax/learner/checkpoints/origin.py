"""Identity of the checkpoint that a run's first parameters were read from.

Where it lies is a place, and may be another when the run goes on; what it holds may not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlboost_jax.models.checkpoint_reader import weights_digest
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.gguf.stand_in import MODEL_SOURCE
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder
from rlboost_jax.settings.huggingface.tensor_files import named_by
from rlboost_jax.settings.teacher_models import TEACHER_SOURCE, teacher_folder

FILE: Final = "origin.json"
TEACHERS_FILE: Final = "teachers.json"


class OriginChanged(Mistake, RuntimeError):
    """A run would resume with another model, or other teachers, than it began with."""


def keep_origin(workdir: Path, source: str) -> None:
    """Write `origin.json`, or compare it with the existing one.

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
    with named_by(MODEL_SOURCE):
        digest = weights_digest(source_folder(source, WEIGHTS)) if source else ""
    if before is not None and before.get("weights") != digest:
        raise OriginChanged(
            f"model.source is {source!r}, whose weights are not those of {before.get('source')!r} "
            f"that the run in {workdir} began with; name a copy of these, or choose another "
            "--workdir"
        )
    at_rest.write_sealed(path, {"source": source, "weights": digest})


def keep_teachers(workdir: Path, sources: Sequence[str]) -> None:
    """Write `teachers.json`, or compare it with the existing one: updates depend on teachers.

    Args:
        sources: of `distillation.teachers`, in order.

    Raises:
        OriginChanged, CheckpointUnusable, ConfigError, Damaged.
    """
    if not sources:
        return
    path = workdir / TEACHERS_FILE
    before = at_rest.read_sealed(
        path,
        "delete it if distillation.teachers are those that the run began with, and it is made anew",
    )
    with named_by(TEACHER_SOURCE):
        digests = [weights_digest(teacher_folder(source)) for source in sources]
    if before is None:
        at_rest.write_sealed(path, {"weights": digests})
        return
    known = before.get("weights")
    for place, source in enumerate(sources):
        if not isinstance(known, list) or known[place : place + 1] != digests[place : place + 1]:
            raise OriginChanged(
                f"distillation.teachers[{place}] is {source!r}, whose weights are not those that "
                f"the run in {workdir} began with; bring them back, or choose another --workdir"
            )
