"""Lines for people on what each of several pools gave and cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def pool_lines(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines from the newest event of kind "pools"; none if a run has one pool."""
    newest = next((event for event in reversed(events) if event["kind"] == "pools"), None)
    for pool in newest["detail"]["pools"] if newest is not None else ():
        hours, speed = pool["seconds_alive"] / 3600, pool["tokens_per_second"]
        yield (
            f"pool {pool['name']}: {pool['asked']} asked, {pool['granted']} granted, "
            f"{pool['refused']} refused, {pool['lost']} lost; {hours:.2f} instance-hours for "
            f"${pool['dollars']:.2f}, now ${pool['price_per_hour']:.2f} an hour"
            + (f" at {speed:,.0f} tokens/s" if speed else "")
        )
