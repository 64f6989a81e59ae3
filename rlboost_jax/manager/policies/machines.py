"""Number of machines to use, and the server that a removal without a name hits."""

from collections.abc import Sequence


def wanted(*, machines: int, max_instances: int, cap: int | None) -> int:
    """Number of servers that should run. `cap`: the number worth having, None if all are."""
    return max(0, min(machines, max_instances, machines if cap is None else cap))


def victim(working: Sequence[str], draw: float) -> str | None:
    """Server that a removal without a name hits; None if none is at work.

    Args:
        working: servers with tokens in the making.
        draw: in [0, 1), chooses among them.
    """
    return working[min(int(draw * len(working)), len(working) - 1)] if working else None
