"""Which instance a rollout goes to, and which rollouts move: pure functions.

Source: RLBoost (NSDI '26), Algorithm 2: SelectInstance and ContinuousLB. Where the pace of every
instance is known, a rollout may go where it is expected to end first instead: fewest pending is
the same among equals, and leaves too much to the slow ones of a mixed fleet.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

MUCH_SLOWER = 1.3  # times the seconds of an idle instance: a rollout goes there
Key = tuple[float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePace:
    """Decode speed of one instance, for rollouts like those of the step."""

    base: float  # seconds of a decode step, whatever its batch
    row: float  # and for each rollout in it, its context read
    tokens: float  # that a rollout still has to come

    def seconds(self, running: int) -> float:
        """Seconds until `running` rollouts that start together have ended."""
        return (self.base + self.row * running) * self.tokens


@dataclass(slots=True, kw_only=True)
class Load:
    """Rollouts of one instance. Those beyond its slots are pending there."""

    slots: int
    held: int
    groups: Collection[int] = ()  # prompts that it holds a rollout of
    plateau: int = 0  # batch above which its throughput hardly grows; 0 if not known
    pace: "InstancePace | None" = None  # None: it goes by how many are pending

    @property
    def pending(self) -> int:
        return max(0, self.held - self.slots)

    @property
    def running(self) -> int:
        return min(self.held, self.slots)


def room(loads: Sequence[Load], max_pending: int) -> int:
    """Number of rollouts the instances accept before one has `max_pending` pending (Θ)."""
    return sum(max(0, load.slots + max_pending - load.held) for load in loads)


def assign(
    prompts: Sequence[int],
    loads: Sequence[Load],
    *,
    max_pending: int,
    group_size: int,
    begun: Collection[int] = (),
) -> list[int]:
    """Join the shortest queue: an index into `loads` for each rollout, named by its prompt.

    Fewest pending first, then the smallest share of slots in use, or, where all paces are
    known, where the rollout would end first; then the order of `loads`. Among equals
    an instance that holds members of the group is taken, because a group shares the pages of
    its prompt. Where whole groups abound, instances within one
    group of the shortest queue count as equal; towards a step's end, where balance
    matters more than pages, only exact equals do. So they do for rollouts that are begun, which
    bring more tokens than those of their prompt. Adds to `held` of the loads.

    Args:
        begun: places among the rollouts.

    `room` must not be smaller than the number of rollouts.
    """
    by_pace = all(load.pace is not None for load in loads)
    slack = group_size - 1 if len(prompts) >= 2 * group_size * len(loads) else 0
    homes: dict[int, list[int]] = {}
    key = _end if by_pace else _key
    heap = [key(load, index) for index, load in enumerate(loads)]
    heapq.heapify(heap)
    chosen: list[int] = []
    for number, prompt in enumerate(prompts):
        while heap[0] != key(loads[heap[0][2]], heap[0][2]):  # a home has grown meanwhile
            heapq.heapreplace(heap, key(loads[heap[0][2]], heap[0][2]))
        best = heap[0]
        if loads[best[2]].held >= loads[best[2]].slots + max_pending:
            raise ValueError(f"no room for rollout {len(chosen)} of {len(prompts)}")
        if prompt not in homes:
            homes[prompt] = [i for i, load in enumerate(loads) if prompt in load.groups]
        own = 0 if number in begun else slack
        near = [i for i in homes[prompt] if _near(loads[i], best, own, by_pace=by_pace)]
        index = min(near, key=lambda i: key(loads[i], i)) if near else best[2]
        loads[index].held += 1
        if index not in homes[prompt]:
            homes[prompt].append(index)
        chosen.append(index)
    return chosen


def places(count: int, loads: Sequence[Load], *, max_pending: int) -> list[int]:
    """Join the shortest queue `count` times, whoever comes: an index into `loads` each time.

    As `assign`, without regard to groups.
    """
    key = _end if all(load.pace is not None for load in loads) else _key
    heap = [key(load, index) for index, load in enumerate(loads)]
    heapq.heapify(heap)
    chosen: list[int] = []
    for _ in range(count):
        index = heap[0][2]
        if loads[index].held >= loads[index].slots + max_pending:
            raise ValueError(f"no room for rollout {len(chosen)} of {count}")
        loads[index].held += 1
        heapq.heapreplace(heap, key(loads[index], index))
        chosen.append(index)
    return chosen


def pending_moves(loads: Sequence[Load], in_transit: int) -> list[int]:
    """First branch of ContinuousLB: pending rollouts to release from each instance.

    They move while an instance has a free slot that none of the `in_transit` rollouts,
    being released already, will fill; always from where most are pending.
    """
    free = sum(load.slots - load.held for load in loads if load.held < load.slots) - in_transit
    moves = [0] * len(loads)
    heap = [(-load.pending, index) for index, load in enumerate(loads) if load.pending]
    heapq.heapify(heap)
    for _ in range(free):
        if not heap:
            break
        pending, index = heap[0]
        moves[index] += 1
        if pending + 1:
            heapq.heapreplace(heap, (pending + 1, index))
        else:
            heapq.heappop(heap)
    return moves


def running_moves(busiest: Load, idle: int) -> int:
    """Second branch: while some instance runs nothing, take from the one that runs most.

    It gives what it runs above its plateau batch B, but keeps an equal share with the idle
    ones: to hand over more would only swap the roles. Reserved engines get nothing this
    way, since their window is about to end.

    Args:
        idle: preemptible instances that hold nothing.
    """
    if not (idle and busiest.plateau):
        return 0
    running = busiest.running
    return max(0, min(running - busiest.plateau, running * idle // (idle + 1)))


def even_moves(loads: Sequence[Load]) -> list[int]:
    """Running rollouts to release from each, so that all instances end at about the same time.

    They move one by one, as long as the instance that would end last gives one to where it would
    end sooner. It is worth their prefill only where the first of them ends much sooner; then all
    that are too many move at once, so that this comes to an end. Nothing moves where a pace is not
    known.
    """
    moves = [0] * len(loads)
    paces = [load.pace for load in loads if load.pace is not None]
    if len(paces) < len(loads):
        return moves
    running = [load.running for load in loads]
    ends = [(-paces[i].seconds(count), i) for i, count in enumerate(running) if count]
    free = [
        (paces[i].seconds(count + 1), i)
        for i, count in enumerate(running)
        if loads[i].held < loads[i].slots
    ]
    heapq.heapify(ends)
    heapq.heapify(free)
    if not ends or not free or -ends[0][0] <= MUCH_SLOWER * free[0][0]:
        return moves
    while ends and free and -ends[0][0] > free[0][0]:
        giver, taker = ends[0][1], free[0][1]
        moves[giver] += 1
        running[giver] -= 1
        running[taker] += 1
        if running[giver]:
            heapq.heapreplace(ends, (-paces[giver].seconds(running[giver]), giver))
        else:
            heapq.heappop(ends)
        if running[taker] < loads[taker].slots:
            heapq.heapreplace(free, (paces[taker].seconds(running[taker] + 1), taker))
        else:
            heapq.heappop(free)
    return moves


def _key(load: Load, index: int) -> Key:
    return load.pending, load.running / load.slots, index


def _end(load: Load, index: int) -> Key:
    """Sort key of an instance: rollouts pending with one more, then when that one would end.

    Pending rollouts come first, since they are released as soon as a slot is free anywhere.
    """
    assert load.pace is not None
    pending = max(0, load.held + 1 - load.slots)
    return pending, load.pace.seconds(min(load.held + 1, load.slots)), index


def _near(load: Load, best: Key, slack: int, *, by_pace: bool) -> bool:
    """Whether a rollout may go to `load` as if it were the shortest queue."""
    if by_pace:
        assert load.pace is not None
        near = load.pace.seconds(max(1, load.running + 1 - slack)) <= best[1]
        return load.held < load.slots and near
    free = load.held < load.slots or best[1] >= 1
    return free and load.pending == best[0] and (load.running - slack) / load.slots <= best[1]
