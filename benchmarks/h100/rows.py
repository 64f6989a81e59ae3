"""A row of the table: what the compiler says of a program, and what that must cost at least."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.h100 import chip
from benchmarks.h100.cost import Collective, Cost, cost_of, largest
from benchmarks.h100.hlo import parse
from benchmarks.h100.program import Program
from benchmarks.h100.rounding import rounding
from rlboost_jax.simulator.sim_config import ChipConfig

GIB, GB = 2.0**30, 1e9


def compiled_row(program: Program, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compile, read and price a program. Raises whatever the compiler raises."""
    since = time.perf_counter()
    compiled = program.lower().compile(compiler_options={**chip.ABSENT, **(options or {})})
    seconds = time.perf_counter() - since
    module = parse(compiled.as_text())
    cost = cost_of(
        module,
        program.assumptions,
        host_devices=chip.HOST_DEVICES,
        cached=chip.CACHED_BYTES,
    )
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporary = memory.temp_size_in_bytes
    peak = getattr(memory, "peak_memory_in_bytes", 0) or held + temporary
    return {
        **priced(program, cost),
        "arguments_gib": memory.argument_size_in_bytes / GIB,
        "outputs_gib": (memory.output_size_in_bytes - memory.alias_size_in_bytes) / GIB,
        "temporaries_gib": temporary / GIB,
        "peak_gib": peak / GIB,
        "plan_gib": program.plan_bytes / GIB,
        "device_gib": (program.held_bytes + temporary) / GIB,
        "fits": program.held_bytes + temporary <= chip.MEMORY_BYTES,
        "largest": [f"{size / GIB:.2f} GiB {text}" for size, text in largest(module)],
        "most_sorted": max(
            (each.shapes[0].size for each in module.instructions() if each.base == "sort"),
            default=0,
        ),
        "compile_seconds": seconds,
        **({"rounding": rounding(module)} if program.shared_rounding else {}),
    }


def priced(program: Program, cost: Cost) -> dict[str, Any]:
    """Seconds of each resource, of all of them one after the other, and of the busiest one.

    MFU counts the arithmetic that the model needs, once: what is computed again, for padding or
    for experts that no token goes to is work of the device and not of the model.
    """
    flops = sum(cost.flops.values())
    seconds = {
        "arithmetic": sum(
            count / chip.FLOPS.get(dtype, chip.LEAST_FLOPS) for dtype, count in cost.flops.items()
        ),
        "hbm": cost.num_bytes / chip.MEMORY_RATE,
        "launches": cost.kernels * chip.LAUNCH_SECONDS,
        "collectives": sum(
            sent / chip.link_rate(key.devices, key.per_host) for key, sent in cost.sent.items()
        ),
        "trips": sum(cost.trips.values()) * chip.TRIP_SECONDS,
        "host": program.host_bytes / chip.PCIE_RATE,
    }
    serial, overlapped = sum(seconds.values()), max(seconds.values())
    work, peak = program.work, program.devices * chip.FLOPS["bf16"]
    return {
        "devices": program.devices,
        "flops": flops,
        "flops_by_type": dict(cost.flops),
        "model_flops": work.flops / program.devices,
        "model_gb": work.num_bytes / GB,
        "ragged_dot_flops": cost.ragged_flops,
        "hbm_gb": cost.num_bytes / GB,
        "cached_gb": cost.cached_bytes / GB,
        "collective_gb": sum(cost.sent.values()) / GB,
        "collectives": [
            _described(key, cost) for key in sorted(cost.sent, key=lambda k: -cost.sent[k])
        ],
        "trips": sum(cost.trips.values()),
        "loops": dict(cost.trips),
        "loops_counted_once": sorted(cost.guessed),
        "kernels": cost.kernels,
        "custom_calls": dict(cost.calls),
        "seconds": seconds,
        "seconds_least": max(work.flops / peak, work.num_bytes / chip.MEMORY_RATE),
        "seconds_serial": serial,
        "seconds_overlapped": overlapped,
        "mfu_serial": work.flops / peak / serial if work.flops and serial else None,
        "mfu_overlapped": work.flops / peak / overlapped if work.flops and overlapped else None,
        "tokens": work.tokens,
        "assumed": program.assumed,
        "context": program.context,
    }


def bounds_on(sheet: ChipConfig, row: Mapping[str, Any]) -> dict[str, float]:
    """The bounds of a row on a chip like the H100, whose arithmetic and memory have other rates.

    Args:
        sheet: of that chip.
        row: of the table, as it is written or as it was read.

    Returns:
        Seconds: "least", "serial" and "overlapped".
    """
    share = chip.FLOPS["bf16"] / sheet.flops_per_second
    seconds = {
        **row["seconds"],
        "arithmetic": row["seconds"]["arithmetic"] * share,
        "hbm": row["hbm_gb"] * GB / sheet.memory_bytes_per_second,
    }
    return {
        "least": max(
            row["model_flops"] / sheet.flops_per_second,
            row["model_gb"] * GB / sheet.memory_bytes_per_second,
        ),
        "serial": sum(seconds.values()),
        "overlapped": max(seconds.values()),
    }


def _described(key: Collective, cost: Cost) -> dict[str, Any]:
    link = "nvlink" if key.devices == key.per_host else "network"
    rate = chip.link_rate(key.devices, key.per_host)
    sent = cost.sent[key]
    return {
        **asdict(key),
        "link": link,
        "number": cost.collectives[key],
        "sent_gb": sent / GB,
        "seconds": sent / rate,
    }
