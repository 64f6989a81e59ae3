"""Prediction of a step for a given seeding window of the reserved engines: a pure function.

Engines of one kind are taken together: they share their rollouts evenly, so that one count of
decode steps says how far all of them are, and only ends of rollouts are events. What the
reserved engines hold when they hand over is prefilled elsewhere. The learner then trains
micro-batches in the order in which their groups are complete; a step ends with the last.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlboost_jax.manager.policies.learner_pace import LearnerPace, micro_batches, train
from rlboost_jax.manager.policies.stations import Engines, ForecastRows, Station

RESOLUTION = 0.004  # of a step: windows closer than that are the same
HALVINGS = 9
GRAINS = 128  # distinct ends, of the longest rollout
WAITS = -1  # place of a rollout that no engine holds


@dataclass(frozen=True, kw_only=True)
class ForecastJob:
    """An unfinished rollout."""

    group: int
    context: float  # tokens now, prompt included
    remaining: float  # tokens that are still to come
    place: int  # index of the engines that hold it; WAITS
    begun: bool = False  # it has tokens, to be prefilled wherever it goes


@dataclass(frozen=True, kw_only=True)
class ForecastPlan:
    """A step from now on; its rollouts are in the order in which they will be placed.

    Args:
        engines: the reserved ones first, then the preemptible ones by kind.
        tokens: of every whole group, prompts included; finished groups too.
        handed_over: when the learner began, if it has; then negative, in seconds from now.
        complete: when the finished groups were complete, likewise; now if missing.
        ahead: all engines have later steps to go on with: reserved ones do not hand over for want
            of work, and rollouts of this step are gathered at as few as have slots for them.
    """

    engines: Sequence[Engines]
    jobs: Sequence[ForecastJob]
    tokens: Sequence[float]
    learner: LearnerPace
    drag: float = 1.0  # of preemptible engines after the seeding window: times their seconds
    handed_over: float | None = None
    complete: Mapping[int, float] = field(default_factory=dict)
    ahead: bool = False


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted moments of a step, in seconds from now."""

    window: float  # until the reserved engines hand over
    rollout: float  # until the last token
    wait: float  # of the learner for groups
    end: float  # of training


class _Course:
    """Simulation of a plan up to some moment."""

    def __init__(self, plan: ForecastPlan) -> None:
        self.plan = plan
        jobs = plan.jobs
        self.groups = [job.group for job in jobs]
        self.rows = ForecastRows(
            [job.context for job in jobs], [job.remaining for job in jobs], [False] * len(jobs)
        )
        grain = max(1.0, max(self.rows.remaining, default=1.0) / GRAINS)
        engines = [replace(each, gathered=plan.ahead) for each in plan.engines]
        self.stations = [Station(each, self.rows, grain) for each in engines]
        self.left: dict[int, int] = {}  # rollouts of each group that have not ended
        self.waiting: list[int] = []  # the first one last
        for number, job in enumerate(jobs):
            self.left[job.group] = self.left.get(job.group, 0) + 1
            if job.place != WAITS and self.stations[job.place].count:
                self.stations[job.place].queue.append(number)
            else:
                self.waiting.append(number)
                self.rows.moves[number] = job.begun
        self.waiting.reverse()
        done = (group for group in range(len(plan.tokens)) if group not in self.left)
        self.complete = [(plan.complete.get(group, 0.0), group) for group in done]
        self.now = 0.0
        self.closed = plan.handed_over
        alone = not (self.stations[0].count or plan.ahead)
        if self.closed is None and self._remote and alone:
            self.closed = 0.0

    @property
    def _remote(self) -> list[Station]:
        return [station for station in self.stations[1:] if station.count]

    def copy(self) -> "_Course":
        """Copy to be continued independently."""
        other = _Course.__new__(_Course)
        other.plan, other.groups, other.rows = self.plan, self.groups, self.rows.copy()
        other.stations = [station.copy(other.rows) for station in self.stations]
        other.left, other.waiting = self.left.copy(), self.waiting.copy()
        other.complete, other.now, other.closed = self.complete.copy(), self.now, self.closed
        return other

    def end(self, window: float) -> Forecast:
        """Simulate to the end of the step.

        The reserved engines hand over after `window` seconds, or when they have no work left.
        """
        self._go_on(window, hand_over=True)
        closed = self.now if self.closed is None else self.closed
        plan = self.plan
        wait, end = train(micro_batches(plan.learner, plan.tokens, self.complete), closed)
        return Forecast(window=closed, rollout=self.now, wait=wait, end=end)

    def approach(self, window: float) -> None:
        """Simulate all events up to `window` that do not depend on the time of the handover.

        To continue from here equals a simulation from the start, for every later handover.
        """
        self._go_on(window, hand_over=False)

    def _go_on(self, window: float, *, hand_over: bool) -> None:
        reserved, remote = self.stations[0], self._remote
        waiting, left, groups = self.waiting, self.left, self.groups
        working = [station for station in (reserved, *remote) if station.count]
        while True:
            while waiting:
                station = min(working, key=_share)
                if station.held >= station.slots:
                    break
                station.queue.append(waiting.pop())
            for station in working:
                if station.queue:
                    station.fill()
            open_ = self.closed is None and bool(remote)
            if open_ and (self.now >= window or not (reserved.held or self.plan.ahead)):
                if not hand_over:
                    return
                self.closed, working = self.now, remote
                for station in remote:
                    station.rates = station.rates.times(self.plan.drag)
                waiting += sorted(reserved.leave(), reverse=True)
                continue
            first = math.inf
            for station in working:
                at = station.next_event()
                if at < first:
                    first = at
            if first == math.inf:
                return
            if open_ and self.now + first > window:
                if not hand_over:
                    return
                first = window - self.now
            self.now += first
            for station in working:
                if station.at > first:
                    station.advance(first)
                    continue
                for number in station.arrive():
                    group = groups[number]
                    left[group] -= 1
                    if not left[group]:
                        self.complete.append((self.now, group))


def forecast(plan: ForecastPlan, window: float) -> Forecast:
    """Predict the step if the reserved engines hand over `window` seconds from now, or when idle.

    Without preemptible engines they go on until all is done.
    """
    return _Course(plan).end(window)


def _share(station: Station) -> float:
    return station.held / station.slots


def best_window(plan: ForecastPlan) -> Forecast:
    """The shortest window after which the learner never waits, or nearly never.

    A longer window ends a step later by as much, since the learner's work begins later; a
    shorter one makes the learner wait for what the reserved engines did not do. Where these do
    not work on the step but ahead of it, a shorter one ends it no sooner: then it is the wait
    alone that counts.
    """
    most = RESOLUTION if plan.ahead else math.inf  # wait of a window that is taken, of its end
    course = _Course(plan)
    low, high = 0.0, course.copy().end(math.inf)
    best = high
    longest = high.window
    now = course.copy().end(0.0)
    if now.end <= best.end and now.wait <= most * now.end:
        best = now
    if now.wait <= 0:
        return now
    for _ in range(HALVINGS):
        if longest - low <= RESOLUTION * best.end:
            break
        tried = course.copy().end((low + longest) / 2)
        if tried.end < best.end and tried.wait <= most * tried.end:
            best = tried
        if tried.wait > RESOLUTION * tried.end:
            low = tried.window
            course.approach(low)
        else:
            longest = tried.window
    return best
