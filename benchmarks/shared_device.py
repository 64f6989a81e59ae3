"""A device with two tenants in virtual time: a served model with deadlines, and rollouts.

One program at a time, each to its end. The tenant serves requests as they come, with continuous
batching: programs of `token_rows` rows with prefill, else decode steps of all. What decides whether
a program of ours goes first is `rlboost_jax.rollout.sharing.slack` itself. Programs take what real
ones took on this machine, drawn anew each time.
"""

import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlboost_jax.engine.costs import Costs
from rlboost_jax.engine.shared import Wants
from rlboost_jax.rollout.sharing.slack import (
    Due,
    Latencies,
    Shape,
    allowance,
    most_idle,
    slack,
)

MIXED = 0  # in place of the rows of a decode step


@dataclass(frozen=True)
class Request:
    arrival: float
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Programs:
    """What programs of an engine take, in seconds."""

    seconds: Mapping[int, Sequence[float]]  # of a decode step by rows, of a mixed one by `MIXED`
    token_rows: int
    max_steps: int

    @property
    def decode_rows(self) -> tuple[int, ...]:
        return tuple(sorted(rows for rows in self.seconds if rows != MIXED))

    def size(self, rows: int) -> int:
        sizes = self.decode_rows
        return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)]

    def mean(self, kind: int) -> float:
        return float(np.mean(self.seconds[kind]))


@dataclass
class TenantRequest:
    """A request in the tenant's engine."""

    request: Request
    left: int  # prompt tokens to be run
    given: int = 0
    due: float = 0.0


@dataclass
class Tenant:
    """Serves what has come; `latencies` are owed."""

    programs: Programs
    latencies: Latencies
    slots: int
    # With prompt tokens to be run, in order.
    queue: deque[TenantRequest] = field(default_factory=deque)
    decoding: list[TenantRequest] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)
    firsts: list[float] = field(default_factory=list)  # seconds from arrival
    gaps: list[float] = field(default_factory=list)
    missed: int = 0  # tokens
    late: set[int] = field(default_factory=set)  # requests, by identity
    busy: float = 0.0

    def arrive(self, request: Request) -> None:
        due = request.arrival + self.latencies.first_token_seconds
        self.queue.append(TenantRequest(request, request.prompt, due=due))

    @property
    def idle(self) -> bool:
        return not self.queue and not self.decoding

    def dues(self, mixed: float, step: Callable[[int], float]) -> list[Due]:
        """What it says of itself, as its programs take so many seconds."""
        rows = self.programs.token_rows
        each = mixed if self.queue else step(len(self.decoding))
        found = [Due(at=s.due, needs=each, first=False) for s in self.decoding]
        tokens = 0
        for place, served in enumerate(self.queue):
            tokens += served.left + len(self.decoding) * (place == 0)
            programs = -(-tokens // rows)
            found.append(Due(at=served.due, needs=programs * mixed, first=True))
        return found

    def run(self, now: float, take: Callable[[int], float]) -> float:
        """Its next program; returns when it ends. `take` says how long it takes."""
        room = self.slots - len(self.decoding)
        if self.queue and room > 0:
            seconds = take(MIXED)
            rows = self.programs.token_rows - len(self.decoding)
            done = []
            while self.queue and rows > 0 and room > 0:
                served = self.queue[0]
                count = min(rows, served.left)
                served.left -= count
                rows -= count
                if served.left:
                    break
                done.append(self.queue.popleft())
                room -= 1
            self.costs = self.costs.mixed_took(seconds)
        else:
            size = self.programs.size(len(self.decoding))
            seconds, done = take(size), []
            self.costs = self.costs.steps_took(size, 1, seconds)
        now += seconds
        self.busy += seconds
        self._yield([*self.decoding, *done], now)
        return now

    def _yield(self, served: list[TenantRequest], now: float) -> None:
        each = self.latencies.token_seconds
        for s in served:
            if now > s.due:
                self.missed += 1
                self.late.add(id(s.request))
            if s.given == 0:
                self.firsts.append(now - s.request.arrival)
            else:
                self.gaps.append(now - s.due + each)
            s.given += 1
            s.due = now + each
        self.decoding = [s for s in served if s.given < s.request.tokens]


@dataclass
class Rollouts:
    """Our engine: rows that are always filled anew, a prompt each time."""

    programs: Programs
    rows: int
    length: int  # tokens of a response
    prompt: int
    position: list[int] = field(default_factory=list)  # of each row that decodes
    behind: int = 0  # prompt tokens to be run
    tokens: int = 0
    busy: float = 0.0
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        self.position = [self.length * n // self.rows for n in range(self.rows)]

    @property
    def wants(self) -> Wants:
        return Wants(ready=len(self.position), prefill_tokens=self.behind)

    @property
    def shape(self) -> Shape:
        programs = self.programs
        return Shape(
            max_steps=programs.max_steps,
            decode_rows=programs.decode_rows,
            token_rows=programs.token_rows,
        )

    def run(
        self, now: float, take: Callable[[int], float], *, prefill: bool, steps: int, rows: int
    ) -> float:
        rows = min(rows, len(self.position))
        if prefill and self.behind:
            seconds = take(MIXED)
            ran = min(self.behind, self.programs.token_rows - rows)
            entered = self.behind // self.prompt - (self.behind - ran) // self.prompt
            self.behind -= ran
            done, self.costs = 1, self.costs.mixed_took(seconds)
            self.position += [0] * entered
        else:
            size = self.programs.size(rows)
            seconds, done = sum(take(size) for _ in range(steps)), steps
            self.costs = self.costs.steps_took(size, steps, seconds)
        for n in range(rows):
            given = min(done, self.length - self.position[n])
            self.position[n] += given
            self.tokens += given
        ended = sum(p >= self.length for p in self.position)
        self.position = [p for p in self.position if p < self.length]
        self.behind += ended * self.prompt
        self.busy += seconds
        return now + seconds


@dataclass(frozen=True)
class Result:
    seconds: float
    requests: int
    late_requests: int
    missed_tokens: int
    tenant_share: float  # of the time that the device was the tenant's
    rollout_share: float
    rollout_tokens_per_second: float
    first_p99: float
    first_worst: float
    gap_p99: float
    gap_worst: float


Go = tuple[bool, int, int] | None  # with prefill, steps, rows; None: not now
Decide = Callable[[Tenant, Rollouts, float, int], Go]


def simulate(
    requests: Sequence[Request],
    tenant: Tenant,
    ours: Rollouts,
    decide: Decide,
    draw: Callable[[int], float],
) -> Result:
    """Until all requests are served.

    Args:
        decide: whether a program of ours goes first: (with prefill, steps, rows), or None; given
            the number of requests that have come.
    """
    now, arrived = 0.0, 0
    while arrived < len(requests) or not tenant.idle:
        while arrived < len(requests) and requests[arrived].arrival <= now:
            tenant.arrive(requests[arrived])
            arrived += 1
        go = decide(tenant, ours, now, arrived)
        if go is not None:
            prefill, steps, rows = go
            now = ours.run(now, draw, prefill=prefill, steps=steps, rows=rows)
        elif not tenant.idle:
            now = tenant.run(now, draw)
        elif arrived < len(requests):
            now = requests[arrived].arrival
    firsts, gaps = np.array(tenant.firsts), np.array(tenant.gaps)
    return Result(
        seconds=now,
        requests=len(requests),
        late_requests=len(tenant.late),
        missed_tokens=tenant.missed,
        tenant_share=tenant.busy / now,
        rollout_share=ours.busy / now,
        rollout_tokens_per_second=ours.tokens / now,
        first_p99=float(np.quantile(firsts, 0.99)),
        first_worst=float(firsts.max()),
        gap_p99=float(np.quantile(gaps, 0.99)),
        gap_worst=float(gaps.max()),
    )


def by_slack(tenant: Tenant, ours: Rollouts, now: float, arrived: int) -> Go:
    """What a shared server does."""
    bound = tenant.costs
    dues = tenant.dues(bound.mixed, lambda rows: bound.step(tenant.programs.size(rows)))
    seconds = min(slack(tenant.latencies, dues, now), most_idle(tenant.latencies))
    found = allowance(seconds, ours.wants, ours.costs, ours.shape)
    return None if found is None else (found.prefill_tokens > 0, found.steps, found.rows)


def tenant_first(tenant: Tenant, ours: Rollouts, now: float, arrived: int) -> Go:
    """Rollouts only while the tenant has nothing to do."""
    if not tenant.idle:
        return None
    return True, ours.programs.max_steps, len(ours.position)


def in_turns() -> Decide:
    """One program each, as if there were no deadlines: what time slicing gives."""
    last = [False]

    def decide(tenant: Tenant, ours: Rollouts, now: float, arrived: int) -> Go:
        last[0] = tenant.idle or not last[0]
        return (True, ours.programs.max_steps, len(ours.position)) if last[0] else None

    return decide


class AllKnown:
    """All arrivals are known, and what every program takes: ours goes first wherever the tenant,
    with the device to itself from then on, is late with nothing for all that is to come."""

    def __init__(self, requests: Sequence[Request], programs: Programs) -> None:
        self._requests = requests
        self._seconds = {kind: programs.mean(kind) for kind in programs.seconds}

    def __call__(self, tenant: Tenant, ours: Rollouts, now: float, arrived: int) -> Go:
        programs = ours.programs
        rows = len(ours.position)
        kinds = [(True, 1)] if ours.behind else []
        kinds += [(False, steps) for steps in range(programs.max_steps, 0, -1)] if rows else []
        for prefill, steps in kinds:
            kind = MIXED if prefill else programs.size(rows)
            if self._in_time(tenant, now + steps * self._seconds[kind], arrived):
                return prefill, steps, rows
        return None

    def _in_time(self, tenant: Tenant, now: float, arrived: int) -> bool:
        """By trying it, until nothing that is there now is owed a token that may be late."""
        trial = Tenant(tenant.programs, tenant.latencies, tenant.slots)
        trial.queue = deque(replace(s) for s in tenant.queue)
        trial.decoding = [replace(s) for s in tenant.decoding]
        end = now + 2 * tenant.latencies.first_token_seconds
        while now < end:
            while arrived < len(self._requests) and self._requests[arrived].arrival <= now:
                trial.arrive(self._requests[arrived])
                arrived += 1
            if trial.idle:
                return True  # who comes later finds the device as if nothing had been
            now = trial.run(now, self._seconds.__getitem__)
            if trial.missed:
                return False
            if not trial.queue and programs_fit(trial):
                return True
        return True


def programs_fit(tenant: Tenant) -> bool:
    """Only decode steps are left, and each gives all their next tokens well in time."""
    longest = tenant.programs.mean(MIXED)
    return 4 * longest < tenant.latencies.token_seconds


def least_tenant_seconds(requests: Sequence[Request], tenant: Tenant) -> float:
    """Lower bound on the device time that any schedule without delays gives the tenant.

    Prompts take whole programs with prefill. A program gives each request one token at most; of
    requests whose times cannot overlap, from arrival to the last moment of the last token, each has
    its own programs: the most of those that any such set needs.
    """
    programs, latencies = tenant.programs, tenant.latencies
    mixed = sum(r.prompt for r in requests) / programs.token_rows
    spans = []
    for r in requests:
        span = latencies.first_token_seconds + (r.tokens - 1) * latencies.token_seconds
        spans.append((r.arrival + span, r.arrival, r.tokens))
    spans.sort()
    ends = [end for end, _, _ in spans]
    best = [0.0]
    for n, (_, start, tokens) in enumerate(spans):
        before = bisect.bisect_right(ends, start, 0, n)
        best.append(max(best[-1], best[before] + tokens))
    steps = max(0.0, best[-1] - mixed)
    least = min(programs.mean(kind) for kind in programs.seconds)
    return mixed * programs.mean(MIXED) + steps * min(least, programs.mean(programs.decode_rows[0]))


def poisson(rate: float, count: int, seed: int) -> list[Request]:
    """Requests with prompts of 8 to 48 tokens and responses of 24 on average."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompts = random.integers(8, 49, count)
    tokens = np.minimum(1 + random.geometric(1 / 24, count), 96)
    return [
        Request(*each) for each in zip(arrivals, prompts.tolist(), tokens.tolist(), strict=True)
    ]


def most_rate(tenant: Callable[[], Tenant], seed: int = 0) -> float:
    """Requests a second of the tenant alone, with all slots full."""
    requests = [replace(r, arrival=0.0) for r in poisson(1.0, 2000, seed)]
    alone = tenant()
    for request in requests:
        alone.arrive(request)
    now = 0.0
    while not alone.idle:
        now = alone.run(now, alone.programs.mean)
    return len(requests) / now


def rollout_rate(ours: Callable[[], Rollouts]) -> float:
    """Tokens a second of our engine alone."""
    alone, now = ours(), 0.0
    for _ in range(3000):
        now = alone.run(
            now,
            alone.programs.mean,
            prefill=True,
            steps=alone.programs.max_steps,
            rows=len(alone.position),
        )
    return alone.tokens / now


def draws(programs: Programs, seed: int) -> Callable[[int], float]:
    random = np.random.default_rng(seed)
    samples = {kind: np.asarray(seconds) for kind, seconds in programs.seconds.items()}
    return lambda kind: float(random.choice(samples[kind]))
