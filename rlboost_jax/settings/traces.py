"""Availability traces: CSV files of `milliseconds,add|remove,name`, in order of time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.platform.bounded_files import Unreadable, explained, read_text
from rlboost_jax.platform.mistakes import ConfigError

MOST_BYTES: Final = 2**26  # of a file: a million rows and more


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    milliseconds: float  # since the beginning of the trace
    action: str  # "add" | "remove"
    name: str


def read_trace(path: str | Path, *, setting: str = "fleet.trace") -> tuple[TraceRow, ...]:
    """Read the rows of a trace file. Empty lines, lines that begin with # and a header are skipped.

    Args:
        setting: that named the file, for errors.

    Raises ConfigError, naming the line, where the file cannot be read or understood.
    """
    try:
        lines = read_text(Path(path), MOST_BYTES, "a trace").splitlines()
    except (OSError, Unreadable) as error:
        raise ConfigError(
            f"{setting}: {explained(error)}; give a readable CSV, 'synthetic' or ''"
        ) from error
    rows: list[TraceRow] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#") or (not rows and text.startswith("milliseconds,")):
            continue
        row = _row(text)
        if row is None or (rows and row.milliseconds < rows[-1].milliseconds):
            raise ConfigError(
                f"{setting}: line {number} of {str(path)!r} is {text[:60]!r}; it must read "
                "milliseconds,add|remove,name with times that never decrease"
            )
        rows.append(row)
    if not rows:
        raise ConfigError(f"{setting}: {str(path)!r} has no rows; give another file or ''")
    return tuple(rows)


def _row(text: str) -> TraceRow | None:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != 3 or fields[1] not in ("add", "remove") or not fields[2]:
        return None
    try:
        milliseconds = float(fields[0])
    except ValueError:
        return None
    if not 0 <= milliseconds < float("inf"):
        return None
    return TraceRow(milliseconds=milliseconds, action=fields[1], name=fields[2])
