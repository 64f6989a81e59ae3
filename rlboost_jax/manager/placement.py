"""Which instance a rollout goes to, and which rollouts move: pure functions.

Source: RLBoost (NSDI '26), Algorithm 2: SelectInstance and ContinuousLB.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Key = tuple[int, float, int]


@dataclass(slots=True, kw_only=True)
class Load:
    """What one instance holds. Everything beyond its slots is pending there."""

    slots: int
    held: int
    groups: Collection[int] = ()  # prompts of which it holds a rollout
    plateau: int = 0  # batch above which its throughput hardly grows; 0 if not known

    @property
    def pending(self) -> int:
        return max(0, self.held - self.slots)

    @property
    def running(self) -> int:
        return min(self.held, self.slots)


def room(loads: Sequence[Load], max_pending: int) -> int:
    """Rollouts that the instances take before one has `max_pending` pending (Θ)."""
    return sum(max(0, load.slots + max_pending - load.held) for load in loads)


def assign(
    prompts: Sequence[int], loads: Sequence[Load], *, max_pending: int, group_size: int
) -> list[int]:
    """Join the shortest queue: an index into `loads` for each rollout, named by its prompt.

    Fewest pending first, then the smallest share of slots in use, then the order of
    `loads`. Among equals an instance that holds members of the group is taken, because a
    group shares the pages of its prompt. Where whole groups abound, instances within one
    group of the shortest queue count as equal; towards a step's end, where balance
    matters more than pages, only exact equals do. Adds to `held` of the loads.

    `room` must not be smaller than the number of rollouts.
    """
    slack = group_size - 1 if len(prompts) >= 2 * group_size * len(loads) else 0
    homes: dict[int, list[int]] = {}
    heap = [_key(load, index) for index, load in enumerate(loads)]
    heapq.heapify(heap)
    chosen: list[int] = []
    for prompt in prompts:
        while heap[0] != _key(loads[heap[0][2]], heap[0][2]):  # a home has grown meanwhile
            heapq.heapreplace(heap, _key(loads[heap[0][2]], heap[0][2]))
        best = heap[0]
        if prompt not in homes:
            homes[prompt] = [i for i, load in enumerate(loads) if prompt in load.groups]
        near = [i for i in homes[prompt] if _near(loads[i], best, slack)]
        index = min(near, key=lambda i: _key(loads[i], i)) if near else best[2]
        if loads[index].pending >= max_pending and loads[index].held >= loads[index].slots:
            raise ValueError(f"no room for rollout {len(chosen)} of {len(prompts)}")
        loads[index].held += 1
        if index not in homes[prompt]:
            homes[prompt].append(index)
        chosen.append(index)
    return chosen


def pending_moves(loads: Sequence[Load], in_transit: int) -> list[int]:
    """First branch of ContinuousLB: pending rollouts to ask back from each instance.

    They move while an instance has a free slot that none of the `in_transit` rollouts,
    already asked back, will fill; always from where most are pending.
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


def _key(load: Load, index: int) -> Key:
    return load.pending, load.running / load.slots, index


def _near(load: Load, best: Key, slack: int) -> bool:
    """Whether a rollout may go to `load` as if it were the shortest queue."""
    free = load.held < load.slots or best[1] >= 1
    return free and load.pending == best[0] and (load.running - slack) / load.slots <= best[1]
