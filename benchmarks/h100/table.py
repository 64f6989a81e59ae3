"""The table for a person: a block for each configuration, a line for each program."""

from collections.abc import Iterator
from typing import Any

_HEADER = (
    f"{'mesh':<8}{'program':<25}{'peak':>7}{'plan':>7}{'device':>8}{'TFLOP':>9}{'HBM GB':>9}"
    f"{'link GB':>9}{'trips':>8}{'least s':>10}{'serial s':>10}{'overl. s':>10}{'MFU':>6}{'MFU':>6}"
)


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """GiB and seconds are of one device; MFU is serial and overlapped, in percent."""
    config = None
    for row in rows:
        if row["config"] != config:
            config = row["config"]
            yield ""
            yield config
            yield _HEADER
        yield _line(row)
        if row.get("compiled_kernels"):
            yield from (f"{'':<33}{_kernel(kernel)}" for kernel in row["compiled_kernels"])


def comparison_lines(compared: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{'':<20}{'mesh':<8}{'program':<22}{'least s':>10}{'serial s':>10}{'overl. s':>10}"
        f"{'simulated s':>13}{'paper s':>10}"
    )
    for row in compared:
        yield (
            f"{row['config']:<20}{row['mesh']:<8}{row['program']:<22}"
            f"{_seconds(row)}{_known(row['seconds_simulated']):>13}"
            f"{_known(row['seconds_simulated_paper']):>10}"
        )


def _line(row: dict[str, Any]) -> str:
    start = f"{row['mesh']:<8}{row['program']:<25}"
    if row.get("failed"):
        return f"{start}failed: {row['failed']}"[:160]
    device = _short(row["device_gib"]) + ("" if row["fits"] else "!")
    memory = f"{_short(row['peak_gib']):>7}{_short(row['plan_gib']):>7}{device:>8}"
    sizes = row["flops"] / 1e12, row["hbm_gb"], row["collective_gb"]
    work = "".join(f"{_short(size):>9}" for size in sizes)
    shares = "".join(_percent(row[f"mfu_{n}"]) for n in ("serial", "overlapped"))
    once = len(row["loops_counted_once"])
    remark = f"  loops counted once: {once}" if once else ""
    return f"{start}{memory}{work}{row['trips']:>8,.0f}{_seconds(row)}{shares}{remark}"


def _seconds(row: dict[str, Any]) -> str:
    names = ("least", "serial", "overlapped")
    return "".join(f"{_short(row[f'seconds_{name}']):>10}" for name in names)


def _short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _known(value: float | None) -> str:
    return "" if value is None else _short(value)


def _percent(share: float | None) -> str:
    return f"{'':>6}" if share is None else f"{100 * share:>6.1f}"


def _kernel(kernel: dict[str, Any]) -> str:
    text = f"{kernel['registers']} registers, {kernel['spilled']} bytes spilled"
    shared = kernel["shared"]
    return f"{kernel['name']}: {text}" + (f", {shared / 1024:g} KiB shared" if shared else "")
