"""Observers of a run's steps: each is called with every finished step, in order.

None changes what the next step does. A step's samples are shown before its row, as trackers expect.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlboost_jax.learner.episodes.shown_samples import sample_rows, samples_due
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.step_metrics import FinishedStep, row_of
from rlboost_jax.observe.cost import CostForecast
from rlboost_jax.observe.diagnostics import Diagnostics
from rlboost_jax.observe.tracker import Trackers
from rlboost_jax.settings.run_config import RunConfig

Observer = Callable[[FinishedStep], None]


def step_observers(
    session: Session, trackers: Trackers, newest: RunConfig, before: Iterable[Mapping[str, Any]]
) -> Sequence[Observer]:
    """Return the observers of a session, the sample table first.

    Args:
        newest: settings of the run's last step, where the session's own hold for fewer.
        before: rows of the steps before this session.
    """
    return sample_table(session, trackers), MetricsTable(session, trackers, newest, list(before))


def sample_table(session: Session, trackers: Trackers) -> Observer:
    """Return the observer that shows some responses of every step where samples are due."""
    observe = session.run.observe

    def show(finished: FinishedStep) -> None:
        if samples_due(observe, finished.step):
            trackers.samples(
                sample_rows(
                    finished.step,
                    finished.trained,
                    task=session.exercises,
                    num_prompts=observe.samples_prompts,
                )
            )

    return show


class MetricsTable:
    """The observer that writes a row of metrics for each step, and notes what looks wrong in it."""

    def __init__(
        self,
        session: Session,
        trackers: Trackers,
        newest: RunConfig,
        before: Sequence[Mapping[str, Any]],
    ) -> None:
        self._session, self._trackers = session, trackers
        self._forecast = CostForecast(newest.num_steps, before)
        self._diagnostics = Diagnostics(newest, before)

    def __call__(self, finished: FinishedStep) -> None:
        row = row_of(finished, self._session)
        self._trackers.step({**row, "cost_forecast_dollars": self._forecast.after(row)})
        for line in self._diagnostics.after(row):
            self._session.note(line)
