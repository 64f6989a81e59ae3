"""What a stage of gpu.py finds out: figures, each beside the bound that no device can beat."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from benchmarks.h100 import chip
from benchmarks.h100.cost import cost_of
from benchmarks.h100.hlo import parse
from benchmarks.h100.program import Program
from benchmarks.h100.rows import bounds_on, priced
from rlboost_jax.simulator.sim_config import ChipConfig

Figure = dict[str, Any]
Cases = Mapping[str, Callable[[], Figure]]  # of a stage, by the name of the figure
TIMES = ("s", "ms", "ms a step", "µs")  # units of which less is better; of others more is


def figure(
    value: Any, unit: str, *, bound: float | None = None, target: str = "", **more: Any
) -> Figure:
    """A figure of a stage.

    Args:
        value: a number, or a word where there is none.
        bound: in the same unit; None: none is known. A time is at least that, a rate at most.
        target: what the value should be.
        more: to be kept beside them.
    """
    return {"value": value, "unit": unit, "bound": bound, "target": target, **more}


def beats_its_bound(found: Mapping[str, Any]) -> bool:
    """Whether a figure is impossible: something else than what it is named after was measured."""
    value, bound = found["value"], found.get("bound")
    if bound is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value < bound if found["unit"] in TIMES else value > bound


def sheet() -> ChipConfig | None:
    """The data sheet of the device that is measured; None where there is none."""
    return chip.sheet_of(jax.devices()[0].device_kind)


def seconds_of(call: Callable[[], Any], *, rounds: int = 5, calls: int = 1) -> float:
    """Median seconds of a call, over rounds after one that does not count.

    Args:
        calls: of a round, launched one after the other and awaited once, so that what a launch
            and a wait take is not part of a short call.
    """
    seconds = []
    for _ in range(rounds + 1):
        since = time.perf_counter()
        results = [call() for _ in range(calls)]
        jax.block_until_ready(results)
        seconds.append((time.perf_counter() - since) / calls)
        del results
    return statistics.median(seconds[1:])


def priced_here(program: Program, compiled: Any) -> Mapping[str, Any]:
    """What the module that runs costs at an H100's rates, as rows of the table have it."""
    module = parse(compiled.as_text())
    cost = cost_of(
        module,
        program.assumptions,
        host_devices=chip.HOST_DEVICES,
        cached=chip.CACHED_BYTES,
    )
    row = priced(program, cost)
    return {**row, "loops_counted_once": len(row["loops_counted_once"])}


def beside_bounds(
    seconds: float, row: Mapping[str, Any], *, share: float = 1.0, times: float = 1.0, **more: Any
) -> Figure:
    """Milliseconds beside the bounds of a row on the device at hand.

    Args:
        row: of the table, or of `priced_here`; empty: no bounds.
        share: of what the row speaks of that was run.
        times: the figure is of one of so many parts of the program.
    """
    here, bounds = sheet(), None
    if here is not None and row:
        scale = 1e3 * share / times
        bounds = {name: scale * value for name, value in bounds_on(here, row).items()}
    value = 1e3 * seconds / times
    return figure(
        value,
        "ms" if times == 1 else "ms a step",
        bound=bounds["least"] if bounds else None,
        serial=bounds["serial"] if bounds else None,
        ratio=value / bounds["serial"] if bounds else None,
        kernels=row.get("kernels", 0) / times if row else None,
        **more,
    )
