"""Runs that share machines, in virtual time: on each a server of every run, one of them at work.

Every run is a whole `World` with a manager, a learner and reserved engines of its own. They have
the clock and the machines in common; who has a machine is decided by the very auction of real
servers (`rlboost_jax.rollout.sharing.auction`), by what the very managers bid. Weights of all runs
are in a machine's memory; pages are those of the run at work.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.rollout.sharing.auction import Auction, bid, bills, entered, has, left, let_go
from rlboost_jax.simulator.market.simulated_market import MachineChange
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.virtual_clock import VirtualClock
from rlboost_jax.simulator.world import World


class SharedMachines:
    """Auctions of all machines, and the servers on them by run."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._auctions: dict[str, Auction] = {}
        self._servers: dict[str, dict[int, NeighbourServer]] = {}
        self.handovers = 0

    @property
    def now(self) -> float:
        return self._clock.now

    def enter(self, machine: str, run: int, server: "NeighbourServer") -> bool:
        """Add a server that has been started; returns whether it has the machine."""
        self._servers.setdefault(machine, {})[run] = server
        before = self._auctions.get(machine, Auction())
        self._auctions[machine] = auction = entered(before, run, self._clock.now)
        return has(auction, run)

    def bid(self, machine: str, run: int, price: float) -> None:
        self._set(machine, bid(self._auctions[machine], run, price, self._clock.now))

    def leave(self, machine: str, run: int) -> None:
        self._servers[machine].pop(run, None)
        self._set(machine, left(self._auctions[machine], run, self._clock.now))

    def bill(self, run: int) -> dict[str, float]:
        """Seconds of each machine that a run has to pay for."""
        now = self._clock.now
        return {machine: bills(a, now).get(run, 0.0) for machine, a in self._auctions.items()}

    def _set(self, machine: str, auction: Auction) -> None:
        self._auctions[machine] = auction
        # Once whoever is being heard has finished: a manager's actions come one after the other.
        self._clock.after(0.0, partial(self._carry_out, machine))

    def _carry_out(self, machine: str) -> None:
        servers = self._servers[machine]
        auction = self._auctions[machine]
        if auction.winner is not None and auction.holder in servers:
            servers[auction.holder].lend(True)
            auction = let_go(auction, auction.holder, self._clock.now)
            self._auctions[machine] = auction
            self.handovers += 1
        for run, server in servers.items():
            server.lend(not has(auction, run))


class NeighbourServer(SimulatedServer):
    """A simulated server on a machine that servers of other runs are on, too."""

    def __init__(self, world: "NeighbourWorld", name: str, nonce: str, *, reserved: bool) -> None:
        super().__init__(world, name, nonce, reserved=reserved)
        self._lent = False
        if not reserved:
            self._run, self._shared = world.run_number, world.shared
            self._machine = world.manager.owners.fleet.servers[name].machine
            self._lent = not self._shared.enter(self._machine, self._run, self)

    def connect(self) -> None:
        super().connect()
        if self.alive and self._lent:
            self._say(m.Capacity(slots=0))

    def hear(self, message: m.ToServer) -> None:
        match message:
            case m.Bid(price=price):
                if self.alive:
                    self._shared.bid(self._machine, self._run, price)
            case m.Generate(requests=requests) if self._lent:  # it was on its way
                ids = m.pack_ids([request.request_id for request in requests])
                self._say(m.Released(request_ids=ids))
            case _:
                super().hear(message)

    def lend(self, lent: bool) -> None:
        """Give the machine to another run, with all rollouts back to the manager, or take it."""
        if lent == self._lent or not self.alive:
            return
        self._lent = lent
        if not self.stream:
            return
        if not lent:
            self._say(m.Capacity(slots=self._slots, cache_tokens=self._cache_tokens))
            return
        ids = [*self.engine.running, *self.engine.queued]
        self._tell()
        self.engine.remove(ids, self._world.clock.now)
        self.engine.forget()
        self._say_batch([], idle=True)
        self._say(m.Capacity(slots=0, request_ids=m.pack_ids(ids)))
        self._plan()

    def _end(self, known_after: float, reason: str) -> None:
        if not self.reserved:
            self._shared.leave(self._machine, self._run)
        super()._end(known_after, reason)

    def _say(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.Hello) and not self.reserved:
            message = msgspec.structs.replace(message, bids=True)
        super()._say(message)


class NeighbourWorld(World):
    """A run among others. Rows have what it pays of the machines, in place of their whole price.

    Args:
        run_number: unlike that of any other run.
        others: as `World` takes them.
    """

    def __init__(
        self,
        config: SimConfig,
        changes: Sequence[MachineChange],
        *,
        run_number: int,
        shared: SharedMachines,
        **others: Any,
    ) -> None:
        self.run_number, self.shared = run_number, shared
        self._lap_paid = (0.0, 0.0)
        super().__init__(config, changes, server=NeighbourServer, **others)

    def lap(self) -> dict[str, float]:
        columns = super().lap()
        bill = self.shared.bill(self.run_number)
        seconds = sum(bill.values())
        dollars = sum(
            paid / 3600 * self._machines.kinds[machine.rpartition("/")[0]].price_per_hour
            for machine, paid in bill.items()
        )
        before, self._lap_paid = self._lap_paid, (seconds, dollars)
        columns["billed_instance_seconds"] = seconds - before[0]
        columns["instance_dollars"] = dollars - before[1]
        return columns


def neighbours(
    configs: Sequence[SimConfig],
    changes: Sequence[MachineChange],
    *,
    seeds: Sequence[int],
    seconds: float,
) -> tuple[list[list[dict[str, Any]]], SharedMachines]:
    """Simulate runs on the same machines, until all have done their steps or the market ends.

    A run that has done its steps keeps none of the machines, and goes on no further.

    Returns:
        rows of the steps of each, and the machines.
    """
    clock = VirtualClock()
    shared = SharedMachines(clock)
    worlds = [
        NeighbourWorld(
            config,
            changes,
            run_number=number,
            shared=shared,
            seed=seed,
            seconds=seconds,
            clock=clock,
        )
        for number, (config, seed) in enumerate(zip(configs, seeds, strict=True))
    ]
    for world in worlds:
        clock.at(0.0, world.trainer.start)
    clock.run(lambda: all(world.done() for world in worlds), seconds)
    return [world.trainer.rows for world in worlds], shared
