"""What a run cost, beside what the reserved devices alone would have cost for the same tokens."""

from collections.abc import Iterable, Mapping
from typing import Any


def reserved_only_dollars(
    rows: Iterable[Mapping[str, Any]], *, reserved_price_per_hour: float
) -> float | None:
    """An estimate: all tokens at the rate that the reserved engines showed in their seeding
    windows, then training as measured, then the rest of the step as measured.

    Generation and training are taken one after the other, since one set of devices does
    both. Evaluations, which are in the bill of the run, are left out. None where the
    reserved engines generated nothing, so that no rate is known.
    """
    rows = list(rows)
    tokens = sum(row["tokens_reserved"] or 0 for row in rows)
    seconds = sum(row["seeding_window_seconds"] or 0.0 for row in rows)
    if tokens <= 0 or seconds <= 0:
        return None
    generation = sum(row["tokens_delivered"] or 0 for row in rows) * seconds / tokens
    rest = sum((row["train_seconds"] or 0.0) + (row["publish_seconds"] or 0.0) for row in rows)
    return (generation + rest) * reserved_price_per_hour / 3600


def total(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    """Sum of a column; what was not measured counts as 0."""
    return sum(row[key] or 0 for row in rows)
