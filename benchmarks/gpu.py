"""Everything that only a GPU can tell, in one command for a bare CUDA machine with jax 0.11.

    python -m benchmarks.gpu [--parts=correctness,bandwidth] [--json=FILE] [--dry_run]
    python -m benchmarks.gpu --parts="table kernels qwen3_8b_openr1,qualification qwen3_8b_openr1"

Each part runs in a process of its own, so that one which fails, or takes the device with it,
leaves the others alone; so does each job of the table, each configuration of qualification and
each way of the peer. A part whose packages are missing is left out, and the table says so.
`--dry_run` goes through the same parts at reduced sizes on whatever device there is, with kernels
for GPU interpreted; its figures mean nothing.

The parts, in `gpu_table.py`, `gpu_kernels.py` and `gpu_models.py`:

    qualification what the engines of each configuration would run here, and why nothing else
    table         each program of results/h100.json that one device can run, beside its bound
    correctness   every GPU implementation of attention against float64; the bits of its rows
    bandwidth     attention as a share of the fastest read, 4 MB to 4 GB of keys and values
    latency       one tiny call inside a compiled step
    products      row counts of equal bits in matrix products; the price of a constant one
    paths         tokens that prefill and decode steps give different bits
    engine        tokens per second of our engine, in the shape of Qwen3-0.6B
    transformers  the same of `transformers` on torch
    training      a training step as a share of the peak of matrix products
    loop          the whole loop of configs/tiny.py
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

PARTS = {
    "qualification": "gpu_table",
    "table": "gpu_table",
    "correctness": "gpu_kernels",
    "bandwidth": "gpu_kernels",
    "latency": "gpu_kernels",
    "products": "gpu_kernels",
    "paths": "gpu_models",
    "engine": "gpu_models",
    "transformers": "gpu_models",
    "training": "gpu_models",
    "loop": "gpu_models",
}
DIVIDED = {  # and what lists its pieces
    "qualification": "configs",
    "table": "jobs",
    "transformers": "ways",
}
PART_SECONDS = 1800.0  # until a part is abandoned
JOB_SECONDS = 600.0  # and a piece of a divided one
LOST = "its process ended"  # of a part that was not done by then
Result = dict[str, Any]  # of a part: status, reason, seconds, figures


def figures_of(part: str) -> Callable[..., Iterable[dict[str, Any]]]:
    """What measures a part."""
    found: Callable[..., Iterable[dict[str, Any]]]
    found = getattr(importlib.import_module(f"benchmarks.{PARTS[part]}"), part)
    return found


def run_part(
    name: str,
    *,
    dry_run: bool,
    note: Callable[[Result], None] = lambda result: None,
    figures: Callable[[str], Callable[..., Iterable[dict[str, Any]]]] = figures_of,
) -> Result:
    """The result of one part, in this process.

    Args:
        name: of the part, and of a divided one behind it which piece; without one all of them.
        note: is given what there is after each figure, in case this process ends.
        figures: has what measures a part.
    """
    since, done = time.perf_counter(), list[dict[str, Any]]()
    part, _, which = name.partition(" ")
    try:
        options = {"which": which} if which else {}
        for figure in figures(part)(dry_run=dry_run, **options):
            done.append(figure)
            seconds = time.perf_counter() - since
            note({"status": "failed", "reason": LOST, "figures": done, "seconds": seconds})
        outcome = {"status": "ok"}
    except ModuleNotFoundError as error:
        outcome = {"status": "left out", "reason": f"{error.name} is not installed"}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        outcome = {"status": "failed", "reason": reason, "traceback": traceback.format_exc()}
    return {"reason": "", "figures": done, **outcome, "seconds": time.perf_counter() - since}


def each(names: Iterable[str], *, dry_run: bool) -> Iterator[str]:
    """What gets a process of its own: parts, and the pieces of divided ones."""
    for name in names:
        if name not in DIVIDED:
            yield name
            continue
        try:
            whole = importlib.import_module(f"benchmarks.{PARTS[name]}")
        except ModuleNotFoundError:
            yield name  # it says what is missing
        else:
            yield from (f"{name} {one}" for one in getattr(whole, DIVIDED[name])(dry_run=dry_run))


def run_apart(
    name: str,
    *,
    dry_run: bool,
    python: str = sys.executable,
    execute: Callable[..., Any] = subprocess.run,
) -> Result:
    """The result of one part, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [python, "-m", "benchmarks.gpu", f"--one={name}", f"--json={path}"]
        since, lost = time.perf_counter(), ""
        limit = JOB_SECONDS if " " in name else PART_SECONDS
        try:
            process = execute(
                [*command, "--dry_run"] if dry_run else command,
                timeout=limit,
                # Of the device's memory, three quarters of which would not hold what a run does.
                env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92", **os.environ},
            )
            lost = f"its process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            lost = f"not done after {limit:.0f} s"
        if path.exists():
            result = json.loads(path.read_text())
            return {**result, "reason": lost} if result["reason"] == LOST else result
    seconds = time.perf_counter() - since
    return {"status": "failed", "reason": lost, "figures": [], "seconds": seconds}


def table(results: dict[str, Result]) -> str:
    """One line per figure, and one for each part that has none."""
    lines = [f"{'part':13} {'figure':62} {'value':>12} {'unit':10} target"]
    for whole, result in results.items():
        name = whole.partition(" ")[0]
        for figure in result["figures"]:
            value = figure["value"]
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(
                f"{name:13} {figure['name']:62} {text:>12} {figure['unit']:10} {figure['target']}"
            )
        if result["status"] != "ok":
            lines.append(f"{whole:13} {result['status']}: {result['reason']}")
    return "\n".join(line.rstrip() for line in lines)


def machine() -> dict[str, str]:
    """What the figures were taken on. JAX is not asked: it would take the device's memory."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("jax", "jaxlib", "torch", "transformers"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found["device"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        found["device"] = "no NVIDIA device"
    return found


def main(
    argv: Iterable[str] | None = None,
    *,
    run: Callable[..., Result] = run_apart,
    figures: Callable[[str], Callable[..., Iterable[dict[str, Any]]]] = figures_of,
) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help=f"of {', '.join(PARTS)}; of {', '.join(DIVIDED)} also a piece, as they are printed",
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/gpu.json"))
    parser.add_argument("--dry_run", action="store_true", help="small sizes, any device")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:

        def write(result: Result) -> None:
            options.json.write_text(json.dumps(result))

        write(run_part(options.one, dry_run=options.dry_run, note=write, figures=figures))
        return 0
    options.json.parent.mkdir(parents=True, exist_ok=True)
    names = options.parts.split(",")
    divided = {name.partition(" ")[0] for name in names if " " in name}
    if unknown := divided - set(DIVIDED) | {name for name in names if " " not in name} - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results: dict[str, Result] = {}
    for name in each(names, dry_run=options.dry_run):
        print(f"{name} …", file=sys.stderr, flush=True)
        results[name] = run(name, dry_run=options.dry_run)
        # After each part: a machine that is lent for an hour may go before the last one.
        whole = {"machine": machine(), "dry_run": options.dry_run, "parts": results}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    print(table(results))
    return int(any(result["status"] == "failed" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
