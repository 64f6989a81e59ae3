"""Alerts, decided from the files of a run.

Each alert is given once a run, however often it is started; that no server is ready, or that the
newest durable checkpoint is behind, once each time that it begins.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rlboost_jax.observe.diagnostics import is_behind, steps_behind
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.settings.alerts_config import AlertsConfig

Kind = Literal["end", "break", "reward", "servers", "spend", "checkpoint"]
STEPS: Final = 10  # that a mean reward is of


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert about a run.

    Attributes:
        text: one line for a person.
        step: the newest that is done; -1: none.
    """

    kind: Kind
    text: str
    step: int


class Watch:
    """Finds new alerts in the state of a run.

    Args:
        said: kinds of alerts that were given before.
    """

    def __init__(self, settings: AlertsConfig, said: Iterable[str] = ()) -> None:
        self._settings = settings
        self._said = {kind for kind in said if kind in ("reward", "spend")}
        self._rows = 0
        self._rewards: list[float] = []  # of the newest steps
        self._best = float("-inf")
        self._without: float | None = None  # since when no server is ready
        self._called = False  # for want of servers
        self._behind = False  # the newest durable checkpoint was, when somebody last looked

    def look(self, view: RunView, now: float) -> list[Alert]:
        """New alerts; `now` in seconds, by a clock that only goes forward."""
        step = step_of(view)
        return [Alert(kind=k, text=t, step=step) for k, t in self._found(view, now)]

    def _found(self, view: RunView, now: float) -> Iterator[tuple[Kind, str]]:
        limit, spent = self._settings.spend_dollars, view.sums["cost_dollars"]
        if limit and spent > limit and self._first("spend"):
            yield "spend", f"${spent:.2f} are spent, more than ${limit:.2f}"
        if (line := self._collapse(view)) and self._first("reward"):
            yield "reward", line
        minutes = self._settings.no_server_minutes
        if minutes and self._alone(view, now) >= 60 * minutes and not self._called:
            self._called = True
            yield "servers", f"no server has been ready for {minutes:g} min"
        behind = view.config is not None and is_behind(view.config, view.last)
        if behind and not self._behind and view.config is not None:
            late, newest = steps_behind(view.config, view.last), view.last["durable_step"]
            yield "checkpoint", f"checkpoint {newest} is the newest durable, {late} steps behind"
        self._behind = behind

    def _first(self, kind: Kind) -> bool:
        first = kind not in self._said
        self._said.add(kind)
        return first

    def _collapse(self, view: RunView) -> str:
        fresh = view.points.count - self._rows
        if fresh < 0:  # the rows are other ones: the run went back
            fresh, self._rewards, self._best = view.points.count, [], float("-inf")
        self._rows = view.points.count
        line = ""
        for point in view.points.all[-fresh:] if fresh else ():
            if (reward := point["reward_mean"]) is None:
                continue
            self._rewards = [*self._rewards[-(STEPS - 1) :], reward]
            if len(self._rewards) < STEPS:
                continue
            mean = sum(self._rewards) / STEPS
            self._best = max(self._best, mean)
            if self._best > 0 and mean < self._settings.reward_share * self._best:
                line = f"the mean reward fell from {self._best:.3g} to {mean:.3g}"
        return line

    def _alone(self, view: RunView, now: float) -> float:
        """Seconds for which no server has been ready."""
        ready = any(
            life.ready is not None and not life.ending and not life.reserved
            for life in view.lives()
        )
        if ready:
            self._without, self._called = None, False
            return 0.0
        self._without = now if self._without is None else self._without
        return now - self._without


def last_alert(view: RunView) -> Alert:
    """Alert for a run whose trainer is gone."""
    step = step_of(view)
    total = view.config.num_steps if view.config is not None else 0
    if step + 1 >= total > 0:
        return Alert(kind="end", text=f"all {total} steps are done", step=step)
    text = f"the trainer ended after {step + 1} of {total} steps; the same command goes on"
    return Alert(kind="break", text=text, step=step)


def step_of(view: RunView) -> int:
    """The newest step that is done; -1 if none is."""
    return int(view.last.get("step", -1))
