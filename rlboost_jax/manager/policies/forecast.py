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

from rlboost_jax.manager.policies.speeds import Rates

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


class _Rows:
    """The rollouts of a forecast; all lists have one entry for each."""

    __slots__ = ("context", "moves", "remaining")

    def __init__(self, context: list[float], remaining: list[float], moves: list[bool]) -> None:
        self.context, self.remaining = context, remaining
        self.moves = moves  # its context must be prefilled

    def copy(self) -> "_Rows":
        return _Rows(self.context.copy(), self.remaining.copy(), self.moves.copy())


class _Station:
    """Engines of one kind in the forecast."""

    __slots__ = ("active", "ahead", "at", "cache", "contexts", "count", "debt", "first", "grain",
                 "more", "queue", "rates", "rows", "slots", "steps")  # fmt: skip

    def __init__(self, engines: Engines, rows: _Rows, grain: float) -> None:
        self.grain = grain  # decode steps: rollouts end at multiples of it, many together
        self.count, self.rates, self.rows = engines.count, engines.rates, rows
        self.slots = engines.count * engines.slots
        self.cache = engines.count * engines.cache_tokens
        self.active: list[tuple[float, int]] = []  # (steps at its end, row)
        self.queue: deque[int] = deque()  # rows in no slot yet, or no longer
        self.steps = 0.0  # decode steps so far
        self.contexts = 0.0  # tokens in slots
        self.debt = 0.0  # seconds of prefill that come first
        # Found by `next_event`:
        self.at = math.inf  # seconds to it
        self.ahead = 0.0  # decode steps to it
        self.first = self.more = 0.0  # a decode step's seconds now, what each later one takes more

    def copy(self, rows: _Rows) -> "_Station":
        """One that goes its own way from here on."""
        other = _Station.__new__(_Station)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.rows, other.active, other.queue = rows, self.active.copy(), self.queue.copy()
        return other

    @property
    def held(self) -> int:
        return len(self.active) + len(self.queue)

    def fill(self) -> None:
        """Let those that wait here into slots, as far as the cache has room for them."""
        active, queue, grain, rows = self.active, self.queue, self.grain, self.rows
        while queue and len(active) < self.slots:
            number = queue[0]
            context = rows.context[number]
            if active and self.contexts + context >= ADMITTED * self.cache:
                return
            steps = self.steps
            end = grain * max(1.0, round((steps + rows.remaining[number]) / grain))
            rows.remaining[number] = remaining = max(grain / 2, end - steps)
            heapq.heappush(active, (steps + remaining, queue.popleft()))
            self.contexts += context
            if rows.moves[number]:
                self.debt += self.rates.prefill * context / min(self.count, len(active))
                rows.moves[number] = False

    def next_event(self) -> float:
        """Seconds until a rollout ends or the cache is full; inf: none is here."""
        rows, count, rates = len(self.active), self.count, self.rates
        if not rows:
            self.at = math.inf
            return math.inf
        used = count if count < rows else rows
        self.first = first = rates.step_seconds(rows / used, self.contexts / used)
        self.more = more = rates.context * rows / used
        steps = self.active[0][0] - self.steps
        if rows > count:
            steps = min(steps, max(0.0, self.cache - self.contexts) / rows)
        self.ahead = steps
        self.at = self.debt + steps * first + more * steps * steps / 2
        return self.at

    def advance(self, seconds: float) -> None:
        """By less than there is to the next event."""
        if not self.active:
            return
        if self.debt:
            paid = min(self.debt, seconds)
            self.debt, seconds = self.debt - paid, seconds - paid
        if seconds <= 0:
            return
        first, more = self.first, self.more
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
        active, rows, ended = self.active, self.rows, []
        while active and active[0][0] - self.steps <= STEP_ROUNDING:
            _, number = heapq.heappop(active)
            left = self.contexts - rows.context[number] - rows.remaining[number]
            self.contexts = max(0.0, left)
            ended.append(number)
        if not ended:
            last = max(active)
            active.remove(last)
            heapq.heapify(active)
            self.out(*last)
            self.queue.appendleft(last[1])
        return ended

    def out(self, end: float, number: int) -> None:
        """A row leaves its slot with what it has; it must be prefilled again."""
        rows = self.rows
        done = rows.remaining[number] - (end - self.steps)
        rows.context[number] += done
        rows.remaining[number] -= done
        rows.moves[number] = True
        self.contexts = max(0.0, self.contexts - rows.context[number])

    def leave(self) -> list[int]:
        """All that is held here, no longer."""
        for end, number in self.active:
            self.out(end, number)
        left = [*(number for _, number in self.active), *self.queue]
        self.active, self.queue, self.contexts = [], deque(), 0.0
        return left


class _Course:
    """A plan, carried out up to some moment."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        jobs = plan.jobs
        self.groups = [job.group for job in jobs]
        self.rows = _Rows(
            [job.context for job in jobs], [job.remaining for job in jobs], [False] * len(jobs)
        )
        grain = max(1.0, max(self.rows.remaining, default=1.0) / GRAINS)
        self.stations = [_Station(engines, self.rows, grain) for engines in plan.engines]
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
        if self.closed is None and self._remote and not self.stations[0].count:
            self.closed = 0.0

    @property
    def _remote(self) -> list[_Station]:
        return [station for station in self.stations[1:] if station.count]

    def copy(self) -> "_Course":
        """One that goes its own way from here on."""
        other = _Course.__new__(_Course)
        other.plan, other.groups, other.rows = self.plan, self.groups, self.rows.copy()
        other.stations = [station.copy(other.rows) for station in self.stations]
        other.left, other.waiting = self.left.copy(), self.waiting.copy()
        other.complete, other.now, other.closed = self.complete.copy(), self.now, self.closed
        return other

    def end(self, window: float) -> Forecast:
        """Go on to the end; the reserved engines hand over at that moment, or when they have
        nothing left."""
        self._go_on(window, hand_over=True)
        closed = self.now if self.closed is None else self.closed
        plan = self.plan
        wait, end = _train(micro_batches(plan.learner, plan.tokens, self.complete), closed)
        return Forecast(window=closed, rollout=self.now, wait=wait, end=end)

    def approach(self, window: float) -> None:
        """Go on through all that happens before reserved engines could hand over, at that moment
        or later: to go on from here is to begin anew, for every such moment."""
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
            if open_ and (self.now >= window or not reserved.held):
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


def forecast(plan: Plan, window: float) -> Forecast:
    """The step if the reserved engines hand over `window` seconds from now, or earlier, when
    they have nothing left.

    Without preemptible engines they go on until all is done.
    """
    return _Course(plan).end(window)


def _share(station: _Station) -> float:
    return station.held / station.slots


def best_window(plan: Plan) -> Forecast:
    """The shortest window after which the learner never waits, or as good as never.

    A longer window ends a step later by as much, since the learner's work begins later; a
    shorter one makes the learner wait for what the reserved engines did not do.
    """
    course = _Course(plan)
    low, high = 0.0, course.copy().end(math.inf)
    best = high
    longest = high.window
    now = course.copy().end(0.0)
    if now.end <= best.end:
        best = now
    if now.wait <= 0:
        return now
    for _ in range(HALVINGS):
        if longest - low <= RESOLUTION * best.end:
            break
        tried = course.copy().end((low + longest) / 2)
        if tried.end < best.end:
            best = tried
        if tried.wait > RESOLUTION * tried.end:
            low = tried.window
            course.approach(low)
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
