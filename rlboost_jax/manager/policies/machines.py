"""How many machines are to be used, and which one a nameless removal takes."""

from collections.abc import Sequence


def wanted(*, machines: int, max_instances: int, cap: int | None) -> int:
    """Servers that should run. `cap`: what is worth having, None if all are."""
    return max(0, min(machines, max_instances, machines if cap is None else cap))


def victim(working: Sequence[str], draw: float) -> str | None:
    """Whom a nameless removal hits, None if nobody is at work.

    Args:
        working: servers with tokens in the making.
        draw: in [0, 1), chooses among them.
    """
    return working[min(int(draw * len(working)), len(working) - 1)] if working else None
