"""How small the difference of two versions is, and how fast it is made and applied.

    python -m benchmarks.deltas [--rates=1e-6,1e-5,1e-4] [--steps=20] [--mebibytes=64]

*Sizes*: a real run of the quickstart at each learning rate, whose versions are cast to bfloat16 as
`weights.rollout_dtype` does, all leaves one behind the other as one piece. *Own*: with the weights
as they are; *σ .02*: the same updates of weights scaled to the spread that those of large models
have, leaf by leaf. AdamW moves a weight by about the learning rate, however large it is. Whole
bytes over those of a delta, against versions so many steps back.

*Speeds*: of one core, in CPU time, on a piece of which that share of entries has moved to a
neighbouring number, all in turns with a copy and SHA-256 of the same piece. *Verified* is what a
server does: to apply a delta, and to hash the result.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import msgspec
import numpy as np

from benchmarks.turns import median_seconds
from rlboost_jax.messages import PieceList
from rlboost_jax.weights.delta_codec import _applied, apply_delta, make_delta
from rlboost_jax.weights.leaf_arrays import open_params

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BACK = (1, 2, 4, 8)  # versions
SHARES = (0.002, 0.01, 0.05, 0.16)
SPREAD = 0.02


def versions_of_a_run(rate: float, steps: int) -> list[list[np.ndarray]]:
    """Float32 leaves of all versions of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            *(f"num_steps={steps}", f"learner.learning_rate={rate}", "evaluation.every_steps=0"),
            *("fleet.chaos.enabled=False", "fleet.max_instances=0", "observe.trackers=()"),
            *("observe.live=False", "weights.rollout_dtype=float32", "weights.keep_versions=1000"),
        )
        command = ["rlboost_jax.main", "--config=configs/quickstart.py", f"--workdir={folder}"]
        subprocess.run(
            [sys.executable, "-m", *command, *(f"--config.{setting}" for setting in settings)],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        snapshots = sorted((Path(folder) / "snapshots").iterdir(), key=lambda path: int(path.name))
        return [leaves_of(path) for path in snapshots]


def leaves_of(snapshot: Path) -> list[np.ndarray]:
    """Arrays of a snapshot that was just written."""
    leaves: list[Any] = []
    for path in sorted(snapshot.glob("*/.zarray")):
        described = json.loads(path.read_text())
        leaf = {"name": path.parent.name, "shape": described["shape"], "dtype": "float32"}
        leaves.append(leaf)
    pieces = msgspec.convert({"files": [], "leaves": leaves}, PieceList)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(open_params(snapshot, pieces))]


def piece(
    leaves: Sequence[np.ndarray], scales: Sequence[float], first: Sequence[np.ndarray]
) -> np.ndarray:
    """All leaves in bfloat16: the first version's scaled, and all updates since as they are."""
    parts = [s * one + (leaf - one) for leaf, s, one in zip(leaves, scales, first, strict=True)]
    return np.concatenate([part.astype(BFLOAT16).reshape(-1) for part in parts])


def sizes(rate: float, steps: int) -> list[dict[str, Any]]:
    """Whole bytes over those of deltas against older versions, over the second half of a run."""
    versions, rows = versions_of_a_run(rate, steps), []
    first = versions[0]
    for spread in ("own", f"σ {SPREAD:g}"):
        scales = [1.0 if spread == "own" else SPREAD / (leaf.std() or SPREAD) for leaf in first]
        pieces = [piece(leaves, scales, first) for leaves in versions]
        ratios, changed = {}, {}
        for back in BACK:
            pairs = [(i - back, i) for i in range(len(pieces) // 2, len(pieces)) if i >= back]
            found = [make_delta(pieces[i], pieces[j]) for i, j in pairs]
            whole = pieces[0].nbytes
            ratios[back] = whole * len(found) / sum(len(d) if d else whole for d in found)
            moved = [(pieces[i].view("u2") != pieces[j].view("u2")).mean() for i, j in pairs]
            changed[back] = float(np.mean(moved))
        rows.append({"rate": rate, "spread": spread, "changed": changed, "ratio": ratios})
    return rows


def moved(share: float, entries: int) -> tuple[np.ndarray, np.ndarray]:
    """A piece, and the same with that share of its entries moved by one place, up or down."""
    rng = np.random.default_rng(0)
    base = (rng.standard_normal(entries, np.float32) * SPREAD).astype(BFLOAT16)
    new = base.copy()
    places = np.flatnonzero(rng.random(entries, np.float32) < share)
    new.view(np.uint16)[places] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(places))
    return base, new


def speeds(mebibytes: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for share in SHARES:
        base, new = moved(share, mebibytes * 2**19)
        delta, digest = make_delta(base, new), hashlib.sha256(new.view(np.uint8)).hexdigest()
        assert delta is not None
        target = np.empty_like(base)
        calls = {
            "make": lambda b=base, n=new: make_delta(b, n),
            "apply": lambda d=delta, b=base: _applied(memoryview(d), b),
            "verified": lambda d=delta, b=base, h=digest: apply_delta(d, b, h),
            "memcpy": lambda t=target, b=base: np.copyto(t, b),
            "sha256": lambda n=new: hashlib.sha256(n.view(np.uint8)).digest(),
        }
        seconds = median_seconds(calls, rounds, clock=time.process_time)
        rates = {name: new.nbytes / 1e9 / taken for name, taken in seconds.items()}
        rows.append({"changed": share, "ratio": new.nbytes / len(delta), "rates": rates})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.deltas", description=__doc__)
    parser.add_argument("--rates", default="1e-6,1e-5,1e-4", help='learning rates; "": no runs')
    parser.add_argument("--steps", type=int, default=20, help="of each run")
    parser.add_argument("--mebibytes", type=int, default=64, help="of the piece for speeds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    fast = speeds(chosen.mebibytes, chosen.rounds)
    print("| changed | ratio | make GB/s | apply | verified | memcpy | SHA-256 |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for row in fast:
        rates = " | ".join(f"{rate:.2f}" for rate in row["rates"].values())
        print(f"| {100 * row['changed']:g} % | {row['ratio']:.0f} | {rates} |")
    learning_rates = map(float, filter(None, chosen.rates.split(",")))
    small = [row for rate in learning_rates for row in sizes(rate, chosen.steps)]
    if small:
        print("\n| learning rate | spread | changed |", *(f"{back} back |" for back in BACK))
        print("|--:|---|--:|" + "--:|" * len(BACK))
    for row in small:
        ratios = " | ".join(f"{row['ratio'][back]:.0f}" for back in BACK)
        changed = f"{100 * row['changed'][1]:.2f} %"
        print(f"| {row['rate']:g} | {row['spread']} | {changed} | {ratios} |")
    if chosen.json:
        chosen.json.write_text(json.dumps({"speeds": fast, "sizes": small}, indent=1) + "\n")


if __name__ == "__main__":
    main()
