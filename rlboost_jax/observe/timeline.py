"""Fleet events as lives of instances, placed on as few lanes as there were at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

READY = ("ready", "working")  # the reserved engine works without ever announcing itself
ARRIVALS = ("joined", "pulled", *READY)
ENDS = ("lost", "drained", "rejected")


@dataclass(frozen=True, kw_only=True)
class Life:
    """One instance from its arrival to its end; times in seconds since the first event."""

    instance: str
    begin: float
    ready: float | None  # first fit for work; None: never was
    end: float
    ending: str  # "lost" | "drained" | "" while it lives
    reason: str
    reserved: bool
    lane: int = 0


def lives(events: Sequence[Mapping[str, Any]]) -> tuple[Life, ...]:
    """In order of arrival. Lane 0 is the lowest that was free at that moment."""
    if not events:
        return ()
    origin = events[0]["time"]
    last = max(event["time"] for event in events) - origin
    open_lives: dict[str, Life] = {}
    closed: list[Life] = []
    for event in events:
        instance, kind, now = event["instance"], event["kind"], event["time"] - origin
        if not instance:
            continue
        life = open_lives.get(instance)
        if kind in ARRIVALS and life is None:
            life = open_lives[instance] = Life(
                instance=instance,
                begin=now,
                ready=None,
                end=last,
                ending="",
                reason="",
                reserved=bool(_detail(event).get("reserved")),
            )
        if kind in READY and life is not None and life.ready is None:
            open_lives[instance] = replace(life, ready=now)
        if kind in ENDS and life is not None:
            reason = str(_detail(event).get("reason", ""))
            closed.append(replace(open_lives.pop(instance), end=now, ending=kind, reason=reason))
    everyone = sorted([*closed, *open_lives.values()], key=lambda life: (life.begin, life.instance))
    return tuple(_on_lanes(everyone))


def ready_counts(everyone: Iterable[Life]) -> list[tuple[float, int]]:
    """(seconds, preemptible instances fit for work from then on), in order of time."""
    changes: dict[float, int] = {0.0: 0}
    for life in everyone:
        if life.ready is not None and not life.reserved:
            changes[life.ready] = changes.get(life.ready, 0) + 1
            if life.ending:
                changes[life.end] = changes.get(life.end, 0) - 1
    count, course = 0, []
    for seconds, change in sorted(changes.items()):
        count += change
        course.append((seconds, count))
    return course


def _on_lanes(everyone: Iterable[Life]) -> Iterable[Life]:
    free_from: list[float] = []  # of each lane
    for life in everyone:
        lane = next((i for i, free in enumerate(free_from) if free <= life.begin), len(free_from))
        free_from[lane : lane + 1] = [life.end if life.ending else float("inf")]
        yield replace(life, lane=lane)


def _detail(event: Mapping[str, Any]) -> Mapping[str, Any]:
    detail = event.get("detail")
    return detail if isinstance(detail, Mapping) else {"reason": detail or ""}
