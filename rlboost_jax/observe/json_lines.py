"""Files of one JSON object a line: read in spite of kills, written once per step."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from rlboost_jax.platform import durable, foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, named, open_regular
from rlboost_jax.platform.closing import Closing

LONGEST_LINE: Final = 2**24  # bytes; a longer one is passed over

Scalar = str | int | float | bool | None


class StepLines(Closing):
    """Appends objects that carry their `step`; a kill takes nothing of what is written, a power
    cut nothing of what was written before `sync`.

    Args:
        step: the first step to come. Lines of this step and later ones, left by a run that
            died after its last checkpoint, are taken out, and so is half a last line.
    """

    def __init__(self, path: Path, *, step: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [values for values in read_lines(path) if _before(values, step)]
        durable.write(path, "".join(map(_line, kept)).encode())
        self._path = path
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115  (until `close`)

    def write(self, objects: Iterable[Mapping[str, Any]]) -> None:
        self._file.write("".join(map(_line, objects)))
        self._file.flush()

    def sync(self) -> None:
        """Make what was written so far durable. May take long; callable in any thread."""
        durable.sync(self._path)

    def close(self) -> None:
        self._file.close()


def read_lines(
    path: Path, *, broken: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSONL file; none if there is no file.

    Lines cut off by a kill are skipped, and those of more than `LONGEST_LINE` bytes.

    Args:
        broken: called for each line that is passed over, unless it is the last one and has no
            end: that may be about to be written.

    Raises:
        Unreadable: it is a folder, a FIFO or a device.
        OSError: it cannot be read; the error names it.
    """
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with named(path), open(descriptor, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            whole = len(line) < LONGEST_LINE or line.endswith(b"\n")
            if whole and (values := decoded(line)) is not None:
                yield values
            elif line.endswith(b"\n") or not whole:
                broken()
            while not whole and (line := file.readline(LONGEST_LINE)):
                whole = line.endswith(b"\n")


def decoded(line: bytes) -> dict[str, Any] | None:
    """Decode a line; None if a kill has cut it off, or it is no object."""
    try:
        return foreign_json.decode(
            line.decode("utf-8", "replace"), "a line", dict, limit=LONGEST_LINE
        )
    except Unreadable:
        return None


def scalar(value: Any) -> Scalar:
    """Convert to JSON's scalars: array scalars become Python's, non-finite numbers null."""
    if value is not None and not isinstance(value, str | int | float | bool):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    plain: Scalar = value
    return plain


def _before(values: Mapping[str, Any], step: int) -> bool:
    number = values.get("step")
    return isinstance(number, int) and number < step


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"
