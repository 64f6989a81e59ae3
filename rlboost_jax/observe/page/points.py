"""Columns of numbers to draw, from rows of `metrics.jsonl` of a run of any length."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rlboost_jax.observe.metrics import DRAFTS

Row = Mapping[str, Any]
Columns = dict[str, list[Any]]

REWARD_PREFIX: Final = "reward/"
ACCURACY: Final = "accuracy"

# What some figure or tile shows, as it is in the file.
SHOWN: Final = (
    *("step", "version", "reward_mean", "accuracy", "pass_at_k", "loss", "kl", "entropy"),
    *("clip_fraction", "gradient_norm", "learning_rate", "response_length_mean"),
    *("response_length_max", "truncated_fraction", "uniform_groups_fraction", "lag"),
    *("ratio_mean", "behaviour_kl", "step_seconds", "train_seconds", "train_wait_seconds"),
    *("remote_wait_seconds", "seeding_window_seconds", "instances_mean", "instances_joined"),
    *("instances_lost", "requests_migrated", "tokens_generated", "tokens_lost"),
    *("tokens_reserved", "tokens_preemptible", "cost_dollars", "cost_forecast_dollars"),
    *("max_logprob_gap", "turns_mean", "sequences_mean", "parked_share", "tool_calls"),
    *("tool_failures", "environment_seconds", "episodes_left_out", "durable_step", "final"),
    *DRAFTS,
)
# What follows from the rows.
RESERVED_RATE, PREEMPTIBLE_RATE = "reserved_per_second", "preemptible_per_second"
ESTIMATED: Final = ("alone_dollars", "own_dollars")  # by the report, see `cost.py`
SPENT, SPENT_SECONDS = "spent_dollars", "spent_seconds"
NOT_DURABLE = "not_durable_steps"


class Points:
    """One point a row, with sums over all rows so far in it.

    Beyond `most` points every second one of the older half is left out. So the newest are all
    there, and what is there is a row as it was.

    Args:
        most: points kept; 0: all.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self.all: list[dict[str, Any]] = []
        self.count = 0  # rows seen
        self.steps = 0  # of these, rows of steps
        self.thinned = 0  # how often points were left out
        self._spent = self._seconds = 0.0

    def add(self, row: Row) -> None:
        self.count += 1
        self.steps += not row.get("final")
        self._spent += row.get("cost_dollars") or 0.0
        self._seconds += row.get("step_seconds") or 0.0
        point = {key: row.get(key) for key in SHOWN}
        more = (key for key in row if key.startswith(REWARD_PREFIX) or key in ESTIMATED)
        point |= {key: row[key] for key in more}
        seconds = row.get("step_seconds")
        point[RESERVED_RATE] = _rate(row.get("tokens_reserved"), seconds)
        point[PREEMPTIBLE_RATE] = _rate(row.get("tokens_preemptible"), seconds)
        if row.get("durable_step") is not None:
            point[NOT_DURABLE] = row["step"] - row["durable_step"]
        point[SPENT], point[SPENT_SECONDS] = self._spent, self._seconds
        self.all.append(point)
        if self._most and len(self.all) > self._most:
            self.all = thinned(self.all)
            self.thinned += 1


def thinned(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop every second point of the older half.

    Of two neighbours the one with an accuracy stays, else the first.
    """
    half = len(points) // 4 * 2
    pairs = zip(points[:half:2], points[1:half:2], strict=True)
    older = [b if a.get(ACCURACY) is None is not b.get(ACCURACY) else a for a, b in pairs]
    return [*older, *points[half:]]


def columns(points: Sequence[Mapping[str, Any]]) -> Columns:
    """List of values for each key that any point has; None where a point lacks it."""
    keys = dict.fromkeys(key for point in points for key, v in point.items() if v is not None)
    return {key: [point.get(key) for point in points] for key in keys}


def points_of(rows: Iterable[Row], most: int = 0) -> Points:
    points = Points(most)
    for row in rows:
        points.add(row)
    return points


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return None if amount is None or not seconds else amount / seconds
