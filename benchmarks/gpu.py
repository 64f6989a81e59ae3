"""What only a GPU can tell, in one process and in the order of what it is worth.

    python -m benchmarks.gpu --minutes=10 [--stages=ceilings,attention] [--resume] [--json=FILE]
    python -m benchmarks.gpu --dry_run

It is what to run first whenever a CUDA machine is at hand. Each figure is written to FILE as it
comes (default benchmarks/results/gpu.json), beside the bound of the device's own data sheet. A
stage that does not fit into the time that is left is passed over, and one that fails leaves the
others alone; a line says so. What FILE has of stages that are not run stays in it, with the machine
that it was measured on. `--resume` passes over what is complete in FILE, and takes what failed
last. `--dry_run` goes through all stages at reduced sizes on any device, with kernels for GPUs
interpreted; its figures mean nothing, and go to no file that is not named.

The stages, with the seconds that each is expected to take on an H200:
"""

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.h100 import chip

RESULTS = Path("benchmarks/results/gpu.json")


class Stage(NamedTuple):
    module: str  # of benchmarks/, which has a function of the stage's name
    seconds: float
    what: str


STAGES = {
    "ceilings": Stage("gpu_ceilings", 20, "a copy and a product in one loop"),
    "engine_8b": Stage("gpu_engine", 120, "decode steps of Qwen3-8B"),
    "engine_06b": Stage("gpu_engine", 60, "Qwen3-0.6B: tokens, and steps with a thing left out"),
    "attention": Stage("gpu_attention", 60, "a whole row of a learner's, beside torch's"),
    "gradients": Stage("gpu_learner", 100, "0.6B; 8B of 4 layers; adapters of 8B"),
    "experts": Stage("gpu_experts", 60, "in a decode step, by row and by group"),
    "transfers": Stage("gpu_learner", 40, "weights to the device; an update with pinned moments"),
    "under_fire": Stage("gpu_fire", 100, "a run, calm and with servers killed: digests"),
    "correctness": Stage("gpu_kernels", 40, "attention against float64; the bits of its rows"),
    "kernels": Stage("gpu_table", 90, "each kernel beside the bound of results/h100.json"),
    "paths": Stage("gpu_engine", 90, "tokens that prefill and decode give different bits"),
    "bandwidth": Stage("gpu_kernels", 40, "attention of 4 MB to 4 GB of keys and values"),
    "latency": Stage("gpu_kernels", 30, "a call that has next to nothing to read"),
    "products": Stage("gpu_kernels", 40, "row counts of equal bits; the price of a constant one"),
    "qualification": Stage("gpu_table", 240, "what engines and learners would run here"),
    "table": Stage("gpu_table", 600, "programs of results/h100.json beside their bounds"),
}
_LINES = "\n".join(f"    {n:14}{s.seconds:5.0f}  {s.what}" for n, s in STAGES.items())

Record = dict[str, Any]  # of a stage: status, reason, seconds, machine, figures
CasesOf = Callable[..., Mapping[str, Callable[[], dict[str, Any]]]]


def cases_of(name: str) -> CasesOf:
    """What makes the figures of a stage, by name."""
    found: CasesOf = getattr(importlib.import_module(f"benchmarks.{STAGES[name].module}"), name)
    return found


def run_stage(
    name: str,
    *,
    tiny: bool,
    left: Callable[[], float],
    note: Callable[[Record], None],
    cases_of: Callable[[str], CasesOf] = cases_of,
) -> None:
    """Measure a stage, figure by figure.

    Args:
        left: seconds until no other figure is begun.
        note: is given what there is before each figure and at the end.
    """
    since, figures = time.perf_counter(), list[dict[str, Any]]()

    def tell(status: str, reason: str = "") -> None:
        seconds = time.perf_counter() - since
        note({"status": status, "reason": reason, "seconds": seconds, "figures": figures})

    try:
        cases = cases_of(name)(tiny=tiny)
    except ModuleNotFoundError as error:
        return tell("left out", f"{error.name} is not installed")
    except Exception as error:
        traceback.print_exc()
        return tell("failed", _reason(error))
    failed = ""
    for case, measure in cases.items():
        if left() <= 0:
            return tell("stopped", f"no time is left for {case!r} and what follows")
        tell("failed", f"the process ended in {case!r}")
        try:
            figures.append({"name": case, **_possible(measure())})
        except ModuleNotFoundError as error:
            figures.append(_word(case, f"left out: {error.name} is not installed"))
        except Exception as error:  # the next figure may come
            traceback.print_exc()
            figures.append(_word(case, f"failed: {_reason(error)}"))
            failed = failed or case
        print(f"  {line_of(figures[-1])}", flush=True)
    tell("failed" if failed else "ok", failed)
    return None


def _possible(figure: dict[str, Any]) -> dict[str, Any]:
    """The figure, without its value where that beats the bound of the device."""
    from benchmarks.gpu_figures import beats_its_bound

    if not beats_its_bound(figure):
        return figure
    word = f"impossible: {figure['value']:.4g} {figure['unit']} beats its bound"
    return {**figure, "value": word}


def _word(case: str, word: str) -> dict[str, Any]:
    return {"name": case, "value": word, "unit": "", "bound": None, "target": ""}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def line_of(figure: Mapping[str, Any]) -> str:
    """A figure for a person."""
    value, unit, bound = figure["value"], figure["unit"], figure.get("bound")
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    words = [f"{figure['name']:70} {text:>12} {unit}"]
    if bound is not None:
        words.append(f"bound {bound:.4g}")
    if ratio := figure.get("ratio"):
        words.append(f"{ratio:.3g} times the serial bound")
    if figure.get("target"):
        words.append(f"should be {figure['target']}")
    return "  ".join(words).rstrip()


def in_order(names: Iterable[str], kept: Mapping[str, Record], machine: Any) -> list[str]:
    """What `--resume` runs: what this machine has not tried, and then what it failed at."""
    tried = {name for name in names if kept.get(name, {}).get("machine") == machine}
    failed = [n for n in names if n in tried and kept[n]["status"] in ("failed", "stopped")]
    return [name for name in names if name not in tried] + failed


def machine() -> dict[str, str]:
    """What figures are taken on."""
    import jax

    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
    }
    for package in ("jax", "jaxlib", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def _said(*command: str) -> str:
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        return "unknown"
    return process.stdout.strip() or "unknown"


def main(
    argv: Sequence[str] | None = None,
    *,
    cases_of: Callable[[str], CasesOf] = cases_of,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{_LINES}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all stages together")
    parser.add_argument("--stages", default=",".join(STAGES), help="names, with commas between")
    parser.add_argument("--json", type=Path, help=f"default {RESULTS}; with --dry_run none")
    parser.add_argument("--resume", action="store_true", help="pass over what FILE has complete")
    parser.add_argument("--dry_run", action="store_true", help="small sizes, any device, no limit")
    options = parser.parse_args(argv)
    names = options.stages.split(",")
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    until = clock() + (float("inf") if options.dry_run else 60 * options.minutes)
    # Of the device's memory: three quarters of it would not hold what a run does.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    path = options.json or (None if options.dry_run else RESULTS)
    kept: dict[str, Record] = {}
    if path is not None and path.exists():
        kept = json.loads(path.read_text())["stages"]
    here = {**machine(), "dry_run": options.dry_run}
    wanted = in_order(names, kept, here) if options.resume else names
    if chip.sheet_of(here["device"]) is None:
        print(f"no data sheet of {here['device']}: its figures stand without bounds")

    def note(name: str, record: Record) -> None:
        kept[name] = {"machine": here, **record}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            ordered = {stage: kept[stage] for stage in STAGES if stage in kept}
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"stages": ordered}, indent=1) + "\n")
            part.replace(path)

    failed = False
    for name in wanted:
        left = until - clock()
        if left < STAGES[name].seconds:
            print(f"{name}: passed over; {STAGES[name].seconds:.0f} s needed, {left:.0f} s left")
            continue
        print(f"{name}: {STAGES[name].what}", flush=True)
        run_stage(
            name,
            tiny=options.dry_run,
            left=lambda: until - clock(),
            note=lambda record, name=name: note(name, record),  # type: ignore[misc]
            cases_of=cases_of,
        )
        failed |= kept[name]["status"] == "failed"
        if kept[name]["status"] != "ok":
            print(f"{name}: {kept[name]['status']}: {kept[name]['reason']}", flush=True)
        gc.collect()  # a stage's arrays are the next one's room
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
