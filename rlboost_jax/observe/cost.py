"""What a run cost, beside what the reserved devices alone would have cost for the same tokens."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

RECENT: Final = 10  # steps: the fleet and the lengths change, what was long ago says little


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


class Forecast:
    """What a run will have cost, step by step.

    Args:
        num_steps: of the whole run.
        rows: those of the steps before, which a run that goes on with has paid for already.
    """

    def __init__(self, num_steps: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._num_steps = num_steps
        self._costs = [row["cost_dollars"] or 0.0 for row in rows]

    def after(self, row: Mapping[str, Any]) -> float:
        """Dollars for all steps, once `row` is paid: those to come at the mean of the last
        `RECENT`. The first is left out of that where there are others, since it has paid for
        starting and warming up too."""
        self._costs.append(row["cost_dollars"] or 0.0)
        recent = self._costs[max(len(self._costs) - RECENT, 1) :] or self._costs
        ahead = max(0, self._num_steps - len(self._costs))
        return sum(self._costs) + ahead * sum(recent) / len(recent)


def total(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    """Sum of a column; what was not measured counts as 0."""
    return sum(row[key] or 0 for row in rows)
