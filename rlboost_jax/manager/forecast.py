"""What a step will take if the reserved engines seed it for so long: a pure function.

Engines of one kind are taken together: they share their rollouts evenly, so that one count of
decode steps says how far all of them are, and only ends of rollouts are events. What the
reserved engines hold when they hand over is prefilled elsewhere. The learner then trains
micro-batches in the order in which their groups are complete; a step ends with the last.
"""

import heapq
import math
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlboost_jax.manager.speeds import Rates

RESOLUTION = 0.004  # of a step: windows closer than that are the same
HALVINGS = 9
ADMITTED = 0.95  # share of a cache up to which engines take up more
STEP_ROUNDING = 1e-6  # decode steps
GRAINS = 128  # ends that are told apart, of the longest rollout
WAITS = -1  # place of a rollout that no engine holds


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Of one kind and pace."""

    count: int
    slots: int  # of each
    rates: Rates
    cache_tokens: float = math.inf  # that each has room for


@dataclass(frozen=True, kw_only=True)
class Job:
    """A rollout in the making."""

    group: int
    context: float  # tokens now, prompt included
    remaining: float  # tokens that are still to come
    place: int  # index of the engines that hold it; WAITS
    begun: bool = False  # it has tokens, to be prefilled wherever it goes


@dataclass(frozen=True, kw_only=True)
class Learner:
    """How groups become micro-batches, and what they take."""

    seconds_per_token: float
    micro_batch_groups: int
    fixed: bool  # micro-batches are made up beforehand, in the order of groups


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A step from now on, in the order in which rollouts are taken up.

    Args:
        engines: the reserved ones first, then the preemptible ones by kind.
        tokens: of every whole group, prompts included; finished groups too.
        handed_over: when the learner began, if it has; then negative, in seconds from now.
        complete: when groups of which nothing is to come were complete, likewise; now if missing.
    """

    engines: Sequence[Engines]
    jobs: Sequence[Job]
    tokens: Sequence[float]
    learner: Learner
    drag: float = 1.0  # of preemptible engines that have taken over: times their seconds
    handed_over: float | None = None
    complete: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds from now."""

    window: float  # until the reserved engines hand over
    rollout: float  # until the last token
    wait: float  # of the learner for groups
    end: float  # of training


class _Station:
    """Engines of one kind in the forecast."""

    __slots__ = ("active", "ahead", "cache", "contexts", "count", "debt", "grain", "queue",
                 "rates", "rows", "slots", "steps")  # fmt: skip

    def __init__(self, engines: Engines, rows: "list[_Row]", grain: float) -> None:
        self.grain = grain  # decode steps: rollouts end at multiples of it, many together
        self.count, self.rates, self.rows = engines.count, engines.rates, rows
        self.slots = engines.count * engines.slots
        self.cache = engines.count * engines.cache_tokens
        self.active: list[tuple[float, int]] = []  # (steps at its end, row)
        self.queue: deque[int] = deque()  # rows in no slot yet, or no longer
        self.steps = 0.0  # decode steps so far
        self.contexts = 0.0  # tokens in slots
        self.debt = 0.0  # seconds of prefill that come first
        self.ahead = 0.0  # decode steps to the next event

    @property
    def held(self) -> int:
        return len(self.active) + len(self.queue)

    def fill(self) -> None:
        """Let those that wait here into slots, as far as the cache has room for them."""
        while self.queue and len(self.active) < self.slots:
            row = self.rows[self.queue[0]]
            if self.active and self.contexts + row.context >= ADMITTED * self.cache:
                return
            end = self.grain * max(1.0, round((self.steps + row.remaining) / self.grain))
            row.remaining = max(self.grain / 2, end - self.steps)
            heapq.heappush(self.active, (self.steps + row.remaining, self.queue.popleft()))
            self.contexts += row.context
            if row.moves:
                self.debt += self.rates.prefill * row.context / min(self.count, len(self.active))
                row.moves = False

    def pace(self) -> tuple[float, float]:
        """A decode step's seconds now, and what each later one takes more."""
        rows = len(self.active)
        used = min(self.count, rows)
        seconds = self.rates.step_seconds(rows / used, self.contexts / used)
        return seconds, self.rates.context * rows / used

    def next_event(self) -> float:
        """Seconds until a rollout ends or the cache is full; inf: none is here."""
        if not self.active:
            return math.inf
        first, more = self.pace()
        steps = self.active[0][0] - self.steps
        if len(self.active) > self.count:
            steps = min(steps, max(0.0, self.cache - self.contexts) / len(self.active))
        self.ahead = steps
        return self.debt + steps * first + more * steps * steps / 2

    def advance(self, seconds: float) -> None:
        """By less than there is to the next event."""
        if not self.active:
            return
        paid = min(self.debt, seconds)
        self.debt, seconds = self.debt - paid, seconds - paid
        if seconds <= 0:
            return
        first, more = self.pace()
        if more * seconds > 1e-9 * first * first:
            steps = (math.sqrt(first * first + 2 * more * seconds) - first) / more
        else:
            steps = seconds / first
        self._step(min(steps, self.ahead))

    def _step(self, steps: float) -> None:
        self.steps += steps
        self.contexts += steps * len(self.active)

    def arrive(self) -> list[int]:
        """At the next event, by its steps and not its seconds, however few these are: rows that
        have ended. Where none has, the cache was full, and one leaves its slot."""
        self.debt = 0.0
        self._step(self.ahead)
        rows: list[int] = []
        while self.active and self.active[0][0] - self.steps <= STEP_ROUNDING:
            _, number = heapq.heappop(self.active)
            row = self.rows[number]
            self.contexts = max(0.0, self.contexts - row.context - row.remaining)
            rows.append(number)
        if not rows:
            last = max(self.active)
            self.active.remove(last)
            heapq.heapify(self.active)
            self.out(*last)
            self.queue.appendleft(last[1])
        return rows

    def out(self, end: float, number: int) -> None:
        """A row leaves its slot with what it has; it must be prefilled again."""
        row = self.rows[number]
        done = row.remaining - (end - self.steps)
        row.context, row.remaining, row.moves = row.context + done, row.remaining - done, True
        self.contexts = max(0.0, self.contexts - row.context)

    def leave(self) -> list[int]:
        """All that is held here, no longer."""
        for end, number in self.active:
            self.out(end, number)
        left = [*(number for _, number in self.active), *self.queue]
        self.active, self.queue, self.contexts = [], deque(), 0.0
        return left


class _Row:
    """A rollout in the forecast."""

    __slots__ = ("context", "moves", "remaining")

    def __init__(self, job: Job) -> None:
        self.context, self.remaining = job.context, job.remaining
        self.moves = False  # its context must be prefilled


def forecast(plan: Plan, window: float) -> Forecast:
    """The step if the reserved engines hand over `window` seconds from now, or earlier, when
    they have nothing left.

    Without preemptible engines they go on until all is done.
    """
    rows = [_Row(job) for job in plan.jobs]
    grain = max(1.0, max((row.remaining for row in rows), default=1.0) / GRAINS)
    stations = [_Station(engines, rows, grain) for engines in plan.engines]
    reserved, remote = stations[0], [s for s in stations[1:] if s.count]
    working = [s for s in (reserved, *remote) if s.count]
    left: dict[int, int] = {}
    waiting: list[int] = []  # the first one last
    for number, job in enumerate(plan.jobs):
        left[job.group] = left.get(job.group, 0) + 1
        if job.place != WAITS and stations[job.place].count:
            stations[job.place].queue.append(number)
        else:
            waiting.append(number)
            rows[number].moves = job.begun
    waiting.reverse()
    done = (group for group in range(len(plan.tokens)) if group not in left)
    complete = [(plan.complete.get(group, 0.0), group) for group in done]
    now = 0.0
    closed = plan.handed_over
    if closed is None and remote and not reserved.count:
        closed = 0.0
    while True:
        while waiting:
            station = min(working, key=_share)
            if station.held >= station.slots:
                break
            station.queue.append(waiting.pop())
        for station in working:
            if station.queue:
                station.fill()
        if closed is None and remote and (now >= window or not reserved.held):
            closed, working = now, remote
            for station in remote:
                station.rates = station.rates.times(plan.drag)
            waiting += sorted(reserved.leave(), reverse=True)
            continue
        events = [station.next_event() for station in working]
        first = min(events, default=math.inf)
        if first == math.inf:
            break
        if closed is None and remote and now + first > window:
            first = window - now
        now += first
        for station, at in zip(working, events, strict=True):
            if at > first:
                station.advance(first)
                continue
            for number in station.arrive():
                group = plan.jobs[number].group
                left[group] -= 1
                if not left[group]:
                    complete.append((now, group))
    closed = now if closed is None else closed
    wait, end = _train(micro_batches(plan.learner, plan.tokens, complete), closed)
    return Forecast(window=closed, rollout=now, wait=wait, end=end)


def _share(station: _Station) -> float:
    return station.held / station.slots


def best_window(plan: Plan) -> Forecast:
    """The shortest window after which the learner never waits, or as good as never.

    A longer window ends a step later by as much, since the learner's work begins later; a
    shorter one makes the learner wait for what the reserved engines did not do.
    """
    low, high = 0.0, forecast(plan, math.inf)
    best = high
    longest = high.window
    now = forecast(plan, 0.0)
    if now.end <= best.end:
        best = now
    if now.wait <= 0:
        return now
    for _ in range(HALVINGS):
        if longest - low <= RESOLUTION * best.end:
            break
        tried = forecast(plan, (low + longest) / 2)
        if tried.end < best.end:
            best = tried
        if tried.wait > RESOLUTION * tried.end:
            low = tried.window
        else:
            longest = tried.window
    return best


Batch = tuple[float, float]  # when its groups are complete, seconds of training it


def micro_batches(
    learner: Learner, tokens: Sequence[float], complete: Iterable[tuple[float, int]]
) -> list[Batch]:
    """In the order in which they are trained.

    Args:
        tokens: of each group, prompts included.
        complete: (seconds, group), each group once.
    """
    key = operator.itemgetter(1) if learner.fixed else None
    groups = sorted(complete, key=key)
    size = learner.micro_batch_groups
    batches = [groups[first : first + size] for first in range(0, len(groups), size)]
    return sorted(
        (
            max(at for at, _ in batch),
            learner.seconds_per_token * sum(tokens[group] for _, group in batch),
        )
        for batch in batches
    )


def without_waits(batches: Sequence[Batch]) -> tuple[float, float]:
    """When the learner may begin at the earliest if it is never to wait, and when the batch is
    complete on which that depends."""
    begin, critical, work = 0.0, 0.0, 0.0
    for ready, seconds in batches:
        if ready - work > begin:
            begin, critical = ready - work, ready
        work += seconds
    return begin, critical


def _train(batches: Sequence[Batch], begin: float) -> tuple[float, float]:
    """Seconds that the learner waits after `begin`, and when it has trained everything."""
    wait, clock = 0.0, begin
    for ready, seconds in batches:
        wait += max(0.0, ready - clock)
        clock = max(clock, ready) + seconds
    return wait, clock
