"""What follows from the rows of the table, without a compiler: its other keys, and a simulation's.

    python -m benchmarks.h100.derived

Reads the rows of `benchmarks/results/h100.json`, writes that file again with all else that is in
it, and the figures of `configs/sim/h100.py`, which packages have and this folder they do not.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.h100 import chip, simulated, steps
from benchmarks.h100.bounds import bounds_of, written
from benchmarks.h100.jobs import MESHES
from rlboost_jax.platform import command_parser

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks/results/h100.json"
BOUNDS = ROOT / "configs/sim/h100_bounds.py"
_CHIP = (
    *("MEMORY_BYTES", "MEMORY_RATE", "CACHED_BYTES", "NVLINK_RATE", "NETWORK_RATE", "PCIE_RATE"),
    *("TRIP_SECONDS", "LAUNCH_SECONDS"),
)


def table(rows: list[dict[str, Any]], *, jax: str = "") -> dict[str, Any]:
    """All of the file.

    Args:
        rows: as they are written, or as they were read.
        jax: the version that compiled them, if not the one that runs.
    """
    rows = rounded(rows)  # what follows is the same from what was read again
    return {
        "jax": jax or importlib.metadata.version("jax"),
        "chip": {
            "flops": chip.FLOPS,
            **{name.lower(): getattr(chip, name) for name in _CHIP},
        },
        "rows": rows,
        "steps": rounded(list(steps.steps(rows))),
        "simulator": rounded(simulated.comparison(rows)),
    }


def bounds_file(rows: Sequence[dict[str, Any]], *, jax: str) -> str:
    """Raises ValueError where a run of `configs/` has no rows."""
    return written({name: bounds_of(name, rows) for name in MESHES}, jax)


def rounded(value: Any) -> Any:
    """Floats to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1) + "\n"


def main() -> None:
    kept = json.loads(TABLE.read_text())
    BOUNDS.write_text(bounds_file(kept["rows"], jax=kept["jax"]))
    TABLE.write_text(text(table(kept["rows"], jax=kept["jax"])))


if __name__ == "__main__":
    command_parser.take_none("benchmarks.h100.derived", __doc__)
    main()
