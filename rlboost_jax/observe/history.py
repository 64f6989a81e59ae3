"""Where a run comes from, and what of it was changed on the way: lines for a person."""

from collections.abc import Iterator
from pathlib import Path

from rlboost_jax.settings.load import read_changes, read_origin


def history_lines(workdir: Path) -> Iterator[str]:
    """In the order of steps. Raises ConfigError where `workdir` holds no run."""
    if (origin := read_origin(workdir)) is not None:
        yield f"forked from step {origin.step} of {origin.workdir} (run {origin.run_id[:8]})"
    yield from map(str, read_changes(workdir))
