"""What the market of a mix gives and takes, drawn by seed.

Each machine of each type has a fate of its own, which is the same in every mix that has it: it is
there from the beginning, is lost at its type's rate, and another takes its place after a time
away. Both times are exponential. A type with a trace has as many machines as the trace has at the
moment, and no more than are bought; each seed begins at another moment of it, and after its end
comes its beginning.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.availability import read_availability
from rlboost_jax.simulator.market.kinds import machine_name
from rlboost_jax.simulator.market.simulated_market import MachineChange
from rlboost_jax.simulator.plan.price_list import InstanceType
from rlboost_jax.simulator.streams import stream


def changes(
    types: Sequence[InstanceType], counts: Sequence[int], *, seed: int, seconds: float
) -> tuple[MachineChange, ...]:
    """Merge the changes of all types by time, until `seconds`; a longer market begins alike."""
    each = (
        _of_type(kind, number, count, seed=seed, seconds=seconds)
        for number, (kind, count) in enumerate(zip(types, counts, strict=True))
        if count
    )
    return tuple(heapq.merge(*each, key=lambda change: change.seconds))


def _of_type(
    kind: InstanceType, number: int, count: int, *, seed: int, seconds: float
) -> Iterator[MachineChange]:
    if kind.trace:
        rows = read_trace_rows(kind.trace)
        begin = float(stream("trace begins", seed, number).uniform())
        return replayed(rows, kind.name, count, begin=begin, seconds=seconds)
    machines = (_machine(kind, number, place, seed=seed, seconds=seconds) for place in range(count))
    return heapq.merge(*machines, key=lambda change: change.seconds)


def _machine(
    kind: InstanceType, number: int, place: int, *, seed: int, seconds: float
) -> Iterator[MachineChange]:
    """Draw the arrivals and losses of the machines that fill one place."""
    random = stream("machines", seed, number, place)
    at, life = 0.0, 0
    while True:
        name = machine_name(kind.name, f"{place + 1}.{life + 1}")
        yield MachineChange(at, True, name)
        if not kind.losses_per_hour:
            return
        at += 3600 / kind.losses_per_hour * float(random.exponential())
        if at >= seconds:
            return
        yield MachineChange(at, False, name)
        at += kind.away_seconds * float(random.exponential())
        life += 1
        if at >= seconds:
            return


def replayed(
    rows: Sequence[TraceRow], kind: str, count: int, *, begin: float, seconds: float
) -> Iterator[MachineChange]:
    """Replay a trace from `begin`, over and over, with at most `count` machines at a time.

    A machine is kept until it is lost; then a free one takes its place.

    Args:
        begin: where in the trace, in [0, 1).
    """
    length = rows[-1].milliseconds / 1000
    free: dict[str, None] = {}
    held: dict[str, None] = {}
    for at, action, name in _round_and_round(rows, length, begin * length):
        if at >= seconds:
            return
        if action == "add":
            free[name] = None
        else:
            free.pop(name, None)
            if name in held:
                del held[name]
                yield MachineChange(at, False, machine_name(kind, name))
        while free and len(held) < count:
            bought = next(iter(free))
            del free[bought]
            held[bought] = None
            yield MachineChange(at, True, machine_name(kind, bought))


def _round_and_round(
    rows: Sequence[TraceRow], length: float, begin: float
) -> Iterator[tuple[float, str, str]]:
    """Yield seconds since the beginning, "add" or "remove", and the machine, over and over.

    Where the trace begins anew, machines stay as far as it begins with as many.
    """
    first = _there(rows, 0.0)
    alive = {name: f"{name}.0" for name in _there(rows, begin)}  # name in the trace → machine
    for machine in alive.values():
        yield 0.0, "add", machine
    since = -begin
    for turn in itertools.count(1):
        for row in rows:
            at = since + row.milliseconds / 1000
            if row.milliseconds <= 0 or at <= 0:
                continue
            if row.action == "add" and row.name not in alive:
                alive[row.name] = f"{row.name}.{turn}"
                yield at, "add", alive[row.name]
            elif row.action == "remove" and row.name in alive:
                yield at, "remove", alive.pop(row.name)
        since += length
        staying = deque(alive.values())
        alive = {}
        for name in first:
            alive[name] = staying.popleft() if staying else f"{name}.{turn}+"
            if alive[name].endswith(f"{turn}+"):
                yield since, "add", alive[name]
        for machine in staying:
            yield since, "remove", machine


def _there(rows: Sequence[TraceRow], seconds: float) -> list[str]:
    """List the machines in a trace at a moment, in the order of their arrival."""
    alive: dict[str, None] = {}
    for row in rows:
        if row.milliseconds / 1000 > seconds:
            break
        if row.action == "add":
            alive[row.name] = None
        else:
            alive.pop(row.name, None)
    return list(alive)


@lru_cache(maxsize=64)
def read_trace_rows(path: str) -> tuple[TraceRow, ...]:
    return read_availability(path)
