"""Cost of a run, and of the same tokens on the reserved devices alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

RECENT: Final = 10  # steps: the fleet and the lengths change, what was long ago says little


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Dollars for the same work: all steps, each from its first request to its update.

    What lies between steps, start and warm-up are the same for both and left out of both.
    """

    run: float  # as it was
    reserved_only: float  # on the reserved devices alone: an estimate


def comparison(
    rows: Iterable[Mapping[str, Any]], *, reserved_price_per_hour: float
) -> Comparison | None:
    """Estimate the cost of the run's work on the reserved devices alone.

    All tokens are taken at the rate that the reserved engines showed in their seeding windows,
    those of evaluation too, then training and publishing as measured.

    Generation and training are taken one after the other, since one set of devices does both. Waits
    for rewards, for environments and on a busy host are in no column, and so not in it: where these
    are long, the estimate is too low.

    None where the reserved engines generated nothing, so that no rate is known, or where rows of
    before do not say what was paid between steps.
    """
    rows = list(rows)
    tokens = sum(row["tokens_reserved"] or 0 for row in rows)
    seconds = sum(row["seeding_window_seconds"] or 0.0 for row in rows)
    between = [row.get("cost_between_dollars") for row in rows]
    if tokens <= 0 or seconds <= 0 or None in between:
        return None
    done = total(rows, "tokens_delivered") + total(rows, "tokens_measured")
    busy = done * seconds / tokens + total(rows, "train_seconds") + total(rows, "publish_seconds")
    return Comparison(
        run=total(rows, "cost_dollars") - total(rows, "cost_between_dollars"),
        reserved_only=busy * reserved_price_per_hour / 3600,
    )


class CostForecast:
    """Forecast of a run's total cost, step by step.

    Args:
        num_steps: of the whole run.
        rows: those of the steps before, which a run that goes on with has paid for already.
    """

    def __init__(self, num_steps: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._num_steps = num_steps
        self._costs = [row["cost_dollars"] or 0.0 for row in rows]

    def after(self, row: Mapping[str, Any]) -> float | None:
        """Dollars for all steps, once `row` is paid: those to come at the mean of recent ones.

        The first row counts in no mean, since it has paid for starting and warming up too. None
        after that one, and where nothing is billed.
        """
        self._costs.append(row["cost_dollars"] or 0.0)
        recent = self._costs[max(len(self._costs) - RECENT, 1) :]
        if not recent or not any(self._costs):
            return None
        ahead = max(0, self._num_steps - 1 - row["step"])  # a fork has fewer rows than steps
        return sum(self._costs) + ahead * sum(recent) / len(recent)


def total(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    """Sum of a column; values not measured, or unknown to an older release, count as 0."""
    return sum(row.get(key) or 0 for row in rows)
