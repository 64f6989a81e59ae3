"""One run of a comparison, read from its files."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.history import history_lines
from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.observe.metrics import FILE, KEYS, steps_of
from rlboost_jax.observe.summary import Summary, summarize
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.config_loading import read_changes, read_run_config
from rlboost_jax.settings.run_config import RunConfig

Row = Mapping[str, Any]

TEXTS: Final = ("trajectories_digest", "params_digest")  # keys of a row that are no numbers
# Facts in `fingerprints.json` about hosts: section, name of the value there, name for people.
HOSTS: Final = (
    ("engines", "fingerprint", "engine"),
    ("releases", "release", "release"),
    ("processors", "processor", "processor"),
    ("trainer", "processes", "trainer's processes"),
)
# Files with digests of what a run began with: the name there, and what a person calls it.
CONTENTS: Final = (
    ("origin.json", "weights", "first weights"),
    ("teachers.json", "weights", "teacher"),
    ("data.json", "digest", "data"),
)


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """The rows and settings of one run of a comparison.

    Attributes:
        name: unique among the compared runs.
        steps: rows of steps, by number.
        final: the row of the final evaluation; None before it.
        hosts: what it ran on: "engine", "release", … → values with the steps they began with.
        contents: digests of what it began with: weights, teachers and data.
        remarks: a line for each part of its files that cannot be read.
    """

    name: str
    config: RunConfig
    changes: Sequence[Change]
    history: Sequence[str]
    steps: Mapping[int, Row]
    final: Row | None
    summary: Summary
    hosts: Mapping[str, Sequence[tuple[int, str]]]
    contents: Mapping[str, str]
    remarks: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        """All rows in order, the final evaluation last."""
        return [*self.steps.values(), *([self.final] if self.final else [])]

    def on(self, what: str, step: int) -> str:
        """Return what the run ran on in a step; "" if it is not known.

        Args:
            what: "engine", "release", "processor", …
        """
        known = [value for since, value in self.hosts.get(what, ()) if since <= step]
        return known[-1] if known else ""


def compared_runs(workdirs: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs in some folders.

    Raises:
        ConfigError: a folder holds no run.
        OSError: the rows of a run cannot be read.
    """
    names = [workdir.resolve().name for workdir in workdirs]
    unlike = len(set(names)) == len(names)
    return [
        _read(workdir, name if unlike else f"{workdir}")
        for workdir, name in zip(workdirs, names, strict=True)
    ]


def _read(workdir: Path, name: str) -> ComparedRun:
    config = read_run_config(workdir / "config.json")
    broken: list[Path] = []
    rows = list(_rows(workdir / FILE, broken))
    remarks = []
    if broken:
        lines = f"{len(broken)} lines" if len(broken) > 1 else "a line"
        are = "are" if len(broken) > 1 else "is"
        remarks.append(f"{name}: {lines} of {FILE} cannot be read, and {are} passed over")
    steps = {row["step"]: row for row in steps_of(rows)}
    finals = [row for row in rows if row["final"]]
    hosts, contents = {}, {}
    try:
        hosts, contents = dict(_hosts(workdir)), dict(_contents(workdir))
    except (Damaged, OSError) as error:
        remarks.append(f"{name}: {error}")
    price = config.fleet.as_billed().reserved_price_per_hour
    ordered = dict(sorted(steps.items()))
    return ComparedRun(
        name=name,
        config=config,
        changes=read_changes(workdir),
        history=tuple(history_lines(workdir)),
        steps=ordered,
        final=finals[-1] if finals else None,
        summary=summarize([*ordered.values(), *finals[-1:]], reserved_price_per_hour=price),
        hosts=hosts,
        contents=contents,
        remarks=remarks,
    )


def _rows(path: Path, broken: list[Path]) -> Iterator[dict[str, Any]]:
    """Rows with all keys; for each line that holds none the file is added to `broken`."""
    for values in read_lines(path, broken=lambda: broken.append(path)):
        row = {key: values.get(key) for key in KEYS}
        if isinstance(row["step"], int) and all(_sound(key, value) for key, value in row.items()):
            yield row
        else:
            broken.append(path)


def _sound(key: str, value: Any) -> bool:
    if value is None or key in TEXTS:
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # nor is it NaN


def _hosts(workdir: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    found = at_rest.read_sealed(workdir / "fingerprints.json", "what it ran on is not compared")
    for section, name, what in HOSTS:
        entries = (found or {}).get(section)
        known = [
            (each["step"], str(each[name]))
            for each in (entries if isinstance(entries, list) else [])
            if isinstance(each, dict) and isinstance(each.get("step"), int) and name in each
        ]
        if known:
            yield what, known


def _contents(workdir: Path) -> Iterator[tuple[str, str]]:
    for file, name, what in CONTENTS:
        found = at_rest.read_sealed(workdir / file, "it is not compared")
        value = (found or {}).get(name)
        if isinstance(value, list):
            named = [(f"{what} {number}", each) for number, each in enumerate(value, start=1)]
        else:
            named = [(what, value)]
        for shown, each in named:
            if isinstance(each, str) and each:
                yield shown, each
