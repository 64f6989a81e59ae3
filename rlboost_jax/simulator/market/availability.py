"""Availability traces of others, in the formats in which they were published.

All become rows of `settings/traces.py`: machines that come and go by name. Formats that only
count name the machines themselves: the first to come is the first to go.

- bamboo: `milliseconds,add|remove,name` lines (Bamboo, Oobleck).
- parcae: `milliseconds,count` lines.
- gcp: `YYYY-MM-DD, HH:MM:SS, count` lines; files in the wild begin out of order, so they are
  put in order.
- skypilot: JSON, `{"metadata": {"gap_seconds": g}, "data": [counts]}`.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained, read_text
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import report_unknown
from rlboost_jax.settings.traces import MOST_BYTES, TraceRow, read_trace
from rlboost_jax.simulator.streams import stream

FORMATS: Final = ("auto", "bamboo", "parcae", "gcp", "skypilot")
SETTING: Final = "market.path"
MAX_MACHINES: Final = 100_000  # at any time


def read_availability(path: str | Path, form: str = "auto") -> tuple[TraceRow, ...]:
    """Read a trace file in one of the formats; "auto" recognises it by the first line.

    Raises ConfigError, naming the line, where the file cannot be read or understood.
    """
    try:
        text = read_text(Path(path), MOST_BYTES, "a trace")
    except (OSError, Unreadable) as error:
        raise ConfigError(f"{SETTING}: {explained(error)}; give a readable trace") from error
    form = _form(text) if form == "auto" else form
    if form == "bamboo":
        return read_trace(path, setting=SETTING)
    counts = _json_counts(text, path) if form == "skypilot" else _line_counts(text, path, form)
    rows = tuple(of_counts(counts))
    if not rows:
        raise ConfigError(f"{SETTING}: {str(path)!r} has no machine at any time; give another")
    return rows


def of_counts(counts: Iterable[tuple[float, int]]) -> Iterator[TraceRow]:
    """Yield trace rows for pairs (milliseconds, machines alive from then on), in order of time."""
    alive: deque[str] = deque()
    named = 0
    for milliseconds, count in counts:
        while len(alive) < count:
            named += 1
            alive.append(f"node{named}")
            yield TraceRow(milliseconds=milliseconds, action="add", name=alive[-1])
        while len(alive) > count:
            yield TraceRow(milliseconds=milliseconds, action="remove", name=alive.popleft())


def keep(rows: Sequence[TraceRow], fraction: float, seed: int) -> tuple[TraceRow, ...]:
    """Keep the rows of a random share of the machines (rounded), drawn by seed.

    Source: RLBoost (NSDI '26), section 6, replays a random half of a trace's machines.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    order = stream("kept machines", seed).permutation(len(names))
    kept = {names[i] for i in order[: round(fraction * len(names))]}
    return tuple(row for row in rows if row.name in kept)


def cut(rows: Sequence[TraceRow], begin: float, end: float) -> tuple[TraceRow, ...]:
    """Cut out the part from `begin` to `end`, in milliseconds, and restart its times at 0.

    Machines that are there at its beginning are added then.
    """
    alive: dict[str, None] = {}
    inside: list[TraceRow] = []
    for row in rows:
        if row.milliseconds <= begin:
            if row.action == "add":
                alive[row.name] = None
            else:
                alive.pop(row.name, None)
        elif row.milliseconds < end:
            since = row.milliseconds - begin
            inside.append(TraceRow(milliseconds=since, action=row.action, name=row.name))
    there = (TraceRow(milliseconds=0.0, action="add", name=name) for name in alive)
    return (*there, *inside)


def _form(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip() and line[0] != "#"), "")
    if first.lstrip().startswith("{"):
        return "skypilot"
    fields = first.split(",")
    if len(fields) == 2:
        return "parcae"
    return "gcp" if len(fields) == 3 and fields[0].count("-") == 2 else "bamboo"


def _line_counts(text: str, path: str | Path, form: str) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        try:
            found.append(_parcae(fields) if form == "parcae" else _gcp(fields))
        except ValueError:
            raise ConfigError(
                f"{SETTING}: line {number} of {str(path)!r} is {line[:60]!r}; it must read "
                + ("milliseconds,count" if form == "parcae" else "YYYY-MM-DD, HH:MM:SS, count")
            ) from None
    found.sort(key=lambda point: point[0])
    if not found:
        raise ConfigError(f"{SETTING}: {str(path)!r} has no rows; give another file")
    first = found[0][0] if form == "gcp" else 0.0
    return [(milliseconds - first, count) for milliseconds, count in found]


def _parcae(fields: Sequence[str]) -> tuple[float, int]:
    milliseconds, count = fields
    return _point(float(milliseconds), int(count))


def _gcp(fields: Sequence[str]) -> tuple[float, int]:
    day, time, count = fields
    when = datetime.strptime(f"{day} {time}", "%Y-%m-%d %H:%M:%S")
    return _point((when - datetime(1970, 1, 1)).total_seconds() * 1000, int(count))


def _point(milliseconds: float, count: int) -> tuple[float, int]:
    if not (0 <= milliseconds < math.inf and 0 <= count <= MAX_MACHINES):
        raise ValueError(f"{count} machines at {milliseconds} ms, not 0 to {MAX_MACHINES}")
    return milliseconds, count


def _json_counts(text: str, path: str | Path) -> list[tuple[float, int]]:
    try:
        values = foreign_json.decode(text, "it", dict)
        gap = float(values["metadata"]["gap_seconds"])
        counts = [_whole(count) for count in values["data"]]
        if not 0 < gap < math.inf or not counts:
            raise ValueError(f"{len(counts)} counts, {gap} s apart")
        points = [_point(i * gap * 1000, count) for i, count in enumerate(counts)]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{SETTING}: {str(path)!r} is no count trace ({type(error).__name__}: {error}); it "
            'must be {"metadata": {"gap_seconds": seconds}, "data": [counts]}'
        ) from None
    place = f"{SETTING}: {path}"
    report_unknown(values, ("metadata", "data"), place)
    report_unknown(values["metadata"], ("gap_seconds",), f"{place}, metadata")
    return points


def _whole(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{count!r} is no count")
    return count
