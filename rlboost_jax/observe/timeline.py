"""Timeline of the fleet: lives of instances, placed on as few lanes as existed at once.

A life begins when the instance was ordered, or joined where nobody ordered it. A manager that
starts knows nothing of the last one's instances: one that never shows up again ended then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rlboost_jax.observe.departures import (
    KINDS,
    LOST,
    Departure,
    ServerCounts,
    departure_of,
    tally_of,
)

READY = ("ready", "working")  # the reserved engine works without ever announcing itself
ARRIVALS = ("joined", "pulled", *READY)
OVER: Final = "the run is over"  # why all servers were sent home, when every step was done


@dataclass(frozen=True, kw_only=True)
class Life:
    """One instance from its order to its end; times in seconds since the first event."""

    instance: str
    begin: float
    ready: float | None  # first fit for work; None: never was
    end: float
    ending: Departure | Literal[""]  # "" while it lives
    reason: str
    reserved: bool
    joined: bool = True  # it had a stream
    dismissed: bool = False  # it was sent home for want of work
    nonce: str = ""  # of the process
    number: int = 0  # of the lives of a run, in the order in which they were heard of
    lane: int = 0


def lives(events: Sequence[Mapping[str, Any]]) -> tuple[Life, ...]:
    """Lives in order of arrival. Lane 0 is the lowest that was free at that moment."""
    return course_of(events).lives() if events else ()


def course_of(events: Sequence[Mapping[str, Any]]) -> "Course":
    """Timeline of events, of which there is at least one."""
    course = Course(events[0]["time"])
    for event in events:
        course.take(event)
    return course


class Course:
    """Timeline built from events, one after the other.

    Args:
        origin: when the first one was, seconds since the epoch.

    Attributes:
        now: of the latest event so far, seconds since the first.
        ended: everyone was sent home, and nobody has come since.
        joined: how often a preemptible server has joined.
    """

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self.now = 0.0
        self.ended = False
        self.joined = 0
        self._over = False  # `ended`, and every step was done
        self._trained_at = float("inf")  # when the newest step, or evaluation, was done
        self._count = 0  # of lives
        self._ordered: dict[str, float] = {}
        self._open: dict[str, Life] = {}  # by name; `end` is when it was seen last
        self._unseen: dict[str, float] = {}  # since a manager started: when the last one wrote
        self._closed: list[Life] = []

    def take(self, event: Mapping[str, Any]) -> None:
        before, self.now = self.now, max(self.now, event["time"] - self.origin)
        instance, kind, now = event["instance"], event["kind"], event["time"] - self.origin
        self.ended = kind == "ended" or (self.ended and not instance and kind != "manager")
        self._over = self.ended and (self._over or _detail(event).get("reason") == OVER)
        match kind:
            case "trained":
                self._trained_at = now
            case "manager":
                self._unseen |= {name: before for name in self._open if name not in self._unseen}
            case "ended":
                for name in tuple(self._open):
                    self._close(name, now, "ended")
            case "ordered":
                self._ordered[instance] = now
            case _ if instance:
                self._take(kind, instance, now, _detail(event))

    def lives(self) -> tuple[Life, ...]:
        """Lives so far, as `lives` gives them; those that go on last to the latest event."""
        everyone = sorted(self._everyone(), key=lambda life: (life.begin, life.instance))
        return tuple(_on_lanes(everyone))

    def tally(self) -> ServerCounts:
        """Counts of preemptible servers so far."""
        endings = (life.ending for life in self._everyone() if not life.reserved)
        return tally_of((ending for ending in endings if ending), joined=self.joined)

    def _everyone(self) -> list[Life]:
        for name in tuple(self._unseen):
            self._close(name, self._unseen[name], "unknown")
        closed = [self._needed(life) for life in self._closed] if self._over else self._closed
        return [*closed, *(replace(life, end=self.now) for life in self._open.values())]

    def _needed(self, life: Life) -> Life:
        """Mark a server that went away after the last step of a finished run as not lost."""
        late = life.ending in LOST and life.end > self._trained_at
        return replace(life, ending="ended") if late else life

    def _take(self, kind: str, instance: str, now: float, detail: Mapping[str, Any]) -> None:
        life, nonce = self._open.get(instance), str(detail.get("nonce", ""))
        ends = kind in KINDS and "version" not in detail  # else it refuses weights, and stays
        if life is not None and kind == "joined" and nonce != life.nonce:  # another of that name
            unseen = self._unseen.get(instance, life.end)
            self._close(instance, unseen, "ended" if life.reserved else "unknown")
            life = None
        self.joined += kind == "joined" and not detail.get("reserved")
        if life is None:
            if kind not in ARRIVALS and not (ends and instance in self._ordered):
                return
            self._count += 1
            life = Life(
                number=self._count,
                instance=instance,
                begin=self._ordered.pop(instance, now),
                ready=None,
                end=now,
                ending="",
                reason="",
                reserved=bool(detail.get("reserved")),
                joined=kind in ARRIVALS,
                nonce=nonce,
            )
        self._unseen.pop(instance, None)
        ready = now if kind in READY and life.ready is None else life.ready
        dismissed = life.dismissed or kind == "dismissed"
        life = replace(life, ready=ready, end=now, dismissed=dismissed)
        self._open[instance] = life
        if ends:
            ending = departure_of(
                kind, reserved=life.reserved, joined=life.joined, dismissed=dismissed
            )
            self._close(instance, now, ending, str(detail.get("reason", "")))

    def _close(self, name: str, end: float, ending: Departure, reason: str = "") -> None:
        self._unseen.pop(name, None)
        life = self._open.pop(name)
        self._closed.append(replace(life, end=end, ending=ending, reason=reason))


def _on_lanes(everyone: Iterable[Life]) -> Iterable[Life]:
    free_from: list[float] = []  # of each lane
    for life in everyone:
        lane = next((i for i, free in enumerate(free_from) if free <= life.begin), len(free_from))
        free_from[lane : lane + 1] = [life.end if life.ending else float("inf")]
        yield replace(life, lane=lane)


def _detail(event: Mapping[str, Any]) -> Mapping[str, Any]:
    detail = event.get("detail")
    return detail if isinstance(detail, Mapping) else {"reason": detail or ""}
