"""Messages to a page: all of a run at first, then what is new."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from rlboost_jax.observe.departures import ServerCounts
from rlboost_jax.observe.page.chart_panels import panels
from rlboost_jax.observe.page.points import columns
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.observe.timeline import Course, Life

FLEET_CAPTION: Final = (
    "Each bar is a server, from its order on. A cross is one that was lost without notice: its "
    "rollouts resumed on others from the tokens collected. A diamond is one that left with notice "
    "or was turned away. Bars without a mark were sent home, or ended with the run."
)
REASON_LETTERS: Final = 300

Message = tuple[str, Any]  # its name and what JSON has


class Cursor:
    """State of one page: what it was sent. A slow page gets the same data in fewer messages.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._generation = -1
        self._rows = self._news = self._warnings = 0
        self._supervised: list[float] = []
        self._lives: dict[int, tuple[Any, ...]] = {}

    def messages(self, view: RunView) -> Iterator[Message]:
        """Messages since the last call. None while there is no configuration."""
        if view.config is None:
            return
        if self._generation != view.generation:
            self._generation = view.generation
            self._lives = {}
            yield "begin", self._begin(view)
            return
        if fresh := view.points.count - self._rows:
            self._rows = view.points.count
            yield "points", columns(view.points.all[-fresh:])
        if lines := view.warnings[self._warnings :]:
            self._warnings = len(view.warnings)
            yield "warnings", lines
        if view.course is not None and (lives := self._changed(view.lives())):
            yield "lives", {"lives": lives, **fleet_values(view.course)}
        if events := self._events(view):
            yield "news", events
        if self._supervised != view.supervised:
            self._supervised = view.supervised
            yield "supervised", view.supervised

    def _begin(self, view: RunView) -> dict[str, Any]:
        assert view.config is not None
        self._rows, self._warnings, self._news = view.points.count, len(view.warnings), 0
        self._supervised = view.supervised
        return {
            "name": self._name,
            "num_steps": view.config.num_steps,
            "panels": panels(view.config),
            "points": columns(view.points.all),
            "fleet_caption": FLEET_CAPTION,
            "lives": self._changed(view.lives()),
            **fleet_values(view.course),
            "warnings": view.warnings,
            "news": self._events(view),
            "supervised": view.supervised,
        }

    def _changed(self, lives: tuple[Life, ...]) -> list[dict[str, Any]]:
        changed = []
        for life in lives:
            values = life_values(life)
            known = tuple(values.values())
            if self._lives.get(life.number) != known:
                self._lives[life.number] = known
                changed.append(values)
        return changed

    def _events(self, view: RunView) -> list[dict[str, Any]]:
        events = [_event(event) for number, event in view.news if number > self._news]
        self._news = view.num_events
        return events


def fleet_values(course: Course | None) -> dict[str, Any]:
    """Values of the fleet as a whole: `now`, and the counts of its preemptible servers."""
    if course is None:
        return {"now": 0.0, "tally": asdict(ServerCounts())}
    return {"now": course.now, "tally": asdict(course.tally())}


def life_values(life: Life) -> dict[str, Any]:
    """Values of an instance for the chart: `end` is null while it lives."""
    return {
        "number": life.number,
        "instance": life.instance,
        "begin": round(life.begin, 3),
        "ready": None if life.ready is None else round(life.ready, 3),
        "end": round(life.end, 3) if life.ending else None,
        "ending": life.ending,
        "reason": life.reason[:REASON_LETTERS],
        "reserved": life.reserved,
        "lane": life.lane,
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    detail = event["detail"]
    reason = detail.get("reason", "") if isinstance(detail, Mapping) else detail
    return {
        "time": event["time"],
        "step": event["step"],
        "kind": str(event["kind"]),
        "instance": str(event["instance"]),
        "reason": str(reason)[:REASON_LETTERS],
    }
