"""How long is a version of 30 GB on its way to a fleet, and what does that cost?

    python -m experiments.weight_transfer.fleets --runs    # ten minutes: runs.json
    python -m experiments.weight_transfer.fleets    # ten minutes: fleets.json and fleets.svg

Rates and prices are those of RLBoost's evaluation: a trainer with 200 Gb/s, instances of two H100
with 50 Gb/s at $5.32 an hour, in three zones. Bytes from one zone to another cost two cents a
gigabyte, as between zones of one region of AWS. Nobody fails but where a case says so.

Whole runs, a version a step, have the rates and prices of `configs/sim/base.py`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from configs.sim import base
from experiments.plots import FOLDER, Drawing, panels
from experiments.simulated import SEEDS, config_of, gains, interval, outcome
from rlboost_jax.simulator.version_spread import SpreadOutcome, VersionSpread
from rlboost_jax.simulator.weight_rounds import spread

VERSION = VersionSpread(
    version_bytes=30e9,
    piece_bytes=64e6,
    trainer_rate=25e9,
    server_rate=6e9,
    zones=(),
    latency_seconds=1e-3,
)
ZONES = 3
DELTA = (
    84  # a difference is so many times smaller: learning rate 1e-6, σ .02 (benchmarks/deltas.py)
)
# SHA-256 of what comes of a difference, and applying it: 1.4 and 3.6 GB/s on a core.
CHECK_SECONDS = 30e9 * (1 / 1.4e9 + 1 / 3.6e9) / 16
PRICE_PER_HOUR = 5.32
EGRESS_PER_GB = 0.02
SIZES = (10, 100, 1000, 10_000)
PEER_SHARE = 0.85  # of its link that a server sends with, by the measurement with 100
FAULTS_OF = 300  # servers, in cases with faults
WAYS = {
    "trainer, whole": "from the trainer, whole",
    "trainer, delta": "from the trainer, a difference",
    "peers, whole": "from each other, whole",
    "peers, delta": "from each other, a difference",
}


def measure(*, sizes: Sequence[int] = SIZES, faults_of: int = FAULTS_OF) -> list[dict[str, Any]]:
    """A row for each size and way, and for each fault. Seconds are of the last server."""
    rows = [
        {"case": way, "instances": count, **_row(way, _version(count, way))}
        for count in sizes
        for way in WAYS
    ]
    calm = _version(faults_of, "peers, whole")
    some = range(0, faults_of, 20)  # some of those that bring parts among them
    cases = {
        "5 % die in mid-pull": replace(calm, lost={i: 1.0 + 3.0 * i / faults_of for i in some}),
        "5 % give nothing": replace(calm, slow=dict.fromkeys(some, 0.0)),
        "5 % give wrong pieces": replace(calm, liars=tuple(some)),
        "10 Gb/s and 60 ms between zones": replace(
            calm, between_zones_rate=1.25e9, latency_seconds=0.02
        ),
    }
    for case, version in cases.items():
        row = _row("peers, whole", version)
        rows.append({"case": case, "instances": faults_of, **row})
    return rows


def measure_runs(
    *, fleets: Sequence[int] = (8, 32), seeds: Sequence[int] = SEEDS[:2], small: bool = False
) -> list[dict[str, Any]]:
    """A row for each fleet that stays and each way: what a step of 14B takes and gives."""
    rows = []
    for count in fleets:
        for way in WAYS:
            links = base.get_config("14b").links
            smaller = DELTA if way.endswith("delta") else 1
            config = config_of(
                "14b",
                small=small,
                links__sender_bytes_per_second=links.sender_bytes_per_second * smaller,
                links__receiver_bytes_per_second=links.receiver_bytes_per_second * smaller,
                links__peer_bytes_per_second=(
                    PEER_SHARE * links.receiver_bytes_per_second * smaller
                    if way.startswith("peers")
                    else 0.0
                ),
            )
            own = [outcome("rlboost", config, count, seed=seed) for seed in seeds]
            whole = own if not rows or rows[-1]["instances"] != count else whole
            rows.append(
                {
                    "case": way,
                    "instances": count,
                    "step_seconds": interval([each.means()["step_seconds"] for each in own]),
                    **gains(own, whole),
                }
            )
    return rows


def trainer_alone(version: VersionSpread) -> tuple[float, float]:
    """Seconds, and bytes between zones, where the trainer sends all: its link is shared evenly."""
    count = len(version.zones)
    abroad = sum(zone != 0 for zone in version.zones)
    rate = min(version.server_rate, version.trainer_rate / count)
    return version.version_bytes / rate, abroad * version.version_bytes


def _version(count: int, way: str) -> VersionSpread:
    smaller = DELTA if way.endswith("delta") else 1
    finer = 4 if count <= 100 else 1  # rounds, where they cost little
    return replace(
        VERSION,
        zones=tuple(number % ZONES for number in range(count)),
        version_bytes=VERSION.version_bytes / smaller,
        piece_bytes=VERSION.piece_bytes / smaller,
        round_seconds=VERSION.piece_bytes / smaller / VERSION.server_rate / finer,
    )


def _row(way: str, version: VersionSpread) -> dict[str, Any]:
    after = CHECK_SECONDS if way.endswith("delta") else 0.0
    row: dict[str, Any] = {"pipeline_seconds": version.pipeline_seconds + after}
    if way.startswith("trainer"):
        seconds, crossing = trainer_alone(version)
        waited = len(version.zones) * (seconds + after)
        sent = len(version.zones) * version.version_bytes
        wasted = 0.0
    else:
        outcome: SpreadOutcome = spread(version)
        seconds, crossing = outcome.seconds, outcome.crossing_bytes
        there = outcome.current_seconds[outcome.current_seconds > 0]
        waited = float(there.sum()) + len(there) * after
        sent, wasted = outcome.trainer_bytes, outcome.wasted_bytes
    return row | {
        "seconds": seconds + after,
        "trainer_copies": sent / version.version_bytes,
        "crossing_copies": crossing / version.version_bytes,
        "wasted_copies": wasted / version.version_bytes,
        "waiting_dollars": waited * PRICE_PER_HOUR / 3600,
        "egress_dollars": crossing / 1e9 * EGRESS_PER_GB,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the README."""
    lines = [
        "| case | instances | seconds | pipeline bound | copies from the trainer | copies between "
        "zones | wasted | dollars: waiting | dollars: egress |",
        "|:--" + "|--:" * 8 + "|",
    ]
    for row in rows:
        numbers = (
            f"{row['instances']:,}",
            *(f"{row[name]:,.1f}" for name in ("seconds", "pipeline_seconds")),
            *(f"{row[f'{name}_copies']:,.2f}" for name in ("trainer", "crossing", "wasted")),
            *(f"{row[f'{name}_dollars']:,.2f}" for name in ("waiting", "egress")),
        )
        lines.append(f"| {WAYS.get(row['case'], row['case'])} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def figure(rows: Sequence[dict[str, Any]]) -> Drawing:
    drawn, axes = panels(2)
    for way, label in WAYS.items():
        own = [row for row in rows if row["case"] == way]
        counts = [row["instances"] for row in own]
        dollars = [row["waiting_dollars"] + row["egress_dollars"] for row in own]
        axes[0].plot(counts, [row["seconds"] for row in own], marker="o", ms=3, label=label)
        axes[1].plot(counts, dollars, marker="o", ms=3, label=label)
    axes[0].set_ylabel("seconds until all have it")
    axes[1].set_ylabel("dollars of a version")
    for panel in axes:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("instances")
    axes[0].legend(fontsize=7)
    return drawn


def runs_table(rows: Sequence[dict[str, Any]]) -> str:
    """A table of whole runs: seconds of a step, and tokens per dollar by the first way."""
    fleets = list(dict.fromkeys(row["instances"] for row in rows))
    lines = ["| | " + " | ".join(f"{count} instances" for count in fleets) + " |"]
    lines.append("|:--" + "|--:" * len(fleets) + "|")
    for way, label in WAYS.items():
        cells = [
            f"{row['step_seconds']['mean']:.0f} s, {row['cost_efficiency']['mean']:.2f}x"
            for row in rows
            if row["case"] == way
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", action="store_true", help="whole runs: writes runs.json")
    folder = FOLDER / "weight_transfer"
    if parser.parse_args().runs:
        rows = measure_runs()
        (folder / "runs.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(runs_table(rows))
        return
    rows = measure()
    (folder / "fleets.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "fleets.svg").write_text(figure(rows)._repr_svg_())
    print(table(rows))


if __name__ == "__main__":
    main()
