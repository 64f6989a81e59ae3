"""History of a run as lines for people: its origin and its changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.settings.config_loading import read_changes, read_origin

WARMUP: Final = "warmup.jsonl"  # a line per supervised update on rows: step, loss, tokens, …


def history_lines(workdir: Path) -> Iterator[str]:
    """Yield the lines in the order of steps. Raises ConfigError if `workdir` holds no run."""
    if (origin := read_origin(workdir)) is not None:
        yield f"forked from step {origin.step} of {origin.workdir} (run {origin.run_id[:8]})"
    yield from warmup_lines(workdir)
    yield from map(str, read_changes(workdir))


def warmup_lines(workdir: Path) -> Iterator[str]:
    """Yield a line on the loss of the supervised updates; none if there were none."""
    losses = [row["loss"] for row in read_lines(workdir / WARMUP) if _is_number(row.get("loss"))]
    if losses:
        count = f"{len(losses):,} supervised update{'s' * (len(losses) != 1)}"
        yield f"{count}: loss {losses[0]:.3f} to {losses[-1]:.3f} nats per token ({WARMUP})"


def _is_number(value: object) -> bool:
    return isinstance(value, float | int)
