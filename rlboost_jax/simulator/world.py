"""The very manager, with a simulated learner, servers, links and a market around it.

Every decision is `rlboost_jax.manager`'s; here events are carried to it and what it wants
done is done, in virtual time. Messages between living peers take no time: what counts is
milliseconds where everything else counts in seconds.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.manager.events import (
    Close,
    Event,
    Exit,
    MachineAdded,
    MachineRemoved,
    Record,
    Request,
    Send,
    Terminate,
    Tick,
)
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.settings import Settings
from rlboost_jax.messages import ToServer, ToTrainer
from rlboost_jax.providers.base import Granted, Started
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.manager_config import ManagerConfig
from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.market.kinds import MachineKind, Machines, kind_name
from rlboost_jax.simulator.market.simulated_market import MachineChange
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.response_lengths import prompts_of, response_lengths
from rlboost_jax.simulator.sim_config import PolicyConfig, SimConfig
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.simulated_trainer import STREAM, SimulatedTrainer
from rlboost_jax.simulator.virtual_clock import VirtualClock

PATIENT = 1e9  # seconds: losses are reported, so leases need not find them
MAX_SERVERS = 100_000


class World:
    """A simulated run: the manager with its learner, servers, links and market.

    Args:
        changes: arrivals and losses of machines, in order of time from 0 on.
        seconds: length of the market; the step then under way is not reported.
        reserved_engines: False: the learner's chips only train.
        manager: makes the manager, from its settings and the time.
        sleeps: the learner takes its chips back when the manager says so and not before.
        server: makes rollout servers and reserved engines.
        machines: of several kinds; None: all are the configuration's own.
        clock: shared with other worlds; None: its own.
    """

    def __init__(
        self,
        config: SimConfig,
        changes: Sequence[MachineChange],
        *,
        seed: int,
        seconds: float,
        reserved_engines: bool = True,
        manager: Callable[[Settings, float], Manager] = Manager,
        sleeps: bool = False,
        server: Callable[..., SimulatedServer] = SimulatedServer,
        machines: Machines | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self._server = server
        self._machines = machines or Machines.of(config)
        self._kinds: dict[str, str] = {}  # of servers that there are or were
        self.config, self._seed, self._seconds = config, seed, seconds
        self.run_id = "simulated"
        self.clock = clock or VirtualClock()
        self.rates = {own: EngineRates(config, reserved=own) for own in (False, True)}
        links = config.links
        sender = links.sender_bytes_per_second * config.reserved.nodes
        self.link = Link(
            self.clock,
            sender=sender,
            receiver=links.receiver_bytes_per_second,
            peer=links.peer_bytes_per_second,
        )
        self.slot_tokens = config.workload.slot_tokens
        self.manager = manager(settings(config, self._machines), 0.0)
        # Instances that are there from the first moment on were started before it.
        self.manager.knows_start(self._machines.start_seconds)
        self.sleeps = sleeps
        self.published_at = 0.0  # the newest weights
        self._streams = STREAM
        self._peers: dict[int, Callable[[ToServer], None]] = {}  # who hears, by stream
        self._servers: dict[str, SimulatedServer] = {}  # of the provider, by name
        self._billed_since: dict[str, float] = {}
        self._billed = self._paid = 0.0  # instance-seconds and dollars of ended instances
        self._lap = (0.0, 0.0, 0.0, 0.0)  # of each column, until the last one
        self.predictions: list[dict[str, Any]] = []  # of coming steps, where their sizes matter
        self._lengths: dict[int, NDArray[np.int64]] = {}
        self._tick_at = float("inf")
        self._inbox: deque[Event] = deque()
        self._handling = False
        self.trainer = SimulatedTrainer(self)
        self.reserved = [
            server(self, "", f"engine-{number}", reserved=True)
            for number in range(config.num_engines if reserved_engines else 0)
        ]
        for change in changes:
            self._plan(change)
        for engine in self.reserved:
            engine.connect()

    def run(self) -> list[dict[str, Any]]:
        """Run to the end and return the rows of all whole steps."""
        self.clock.at(0.0, self.trainer.start)
        self.clock.run(self.done, self._seconds)
        return self.trainer.rows

    def rates_of(self, name: str, *, reserved: bool) -> EngineRates:
        """Speeds of a reserved engine, or of a provider's server by the number in its name."""
        rates = self.rates[reserved] if reserved else self.kind_of(name).rates
        every = self.config.instance.slow_every
        number = name.rpartition("-")[2]
        slow = every and number.isdecimal() and int(number) % every == 0
        return rates.slowed(self.config.instance.slow_factor) if slow else rates

    def kind_of(self, name: str) -> MachineKind:
        """Machine that a server of the provider runs on."""
        return self._machines.kinds[self._kinds[name]]

    @property
    def reserved_device(self) -> str:
        return self._machines.reserved_device

    def over(self, step: int) -> bool:
        """Whether no step from this one on is begun."""
        return 0 < self.config.num_steps <= step

    def length(self, step: int, sample: int) -> int:
        """Length of a whole response, in tokens."""
        if step not in self._lengths:
            work = self.config.workload
            self._lengths[step] = response_lengths(work, seed=self._seed, step=step)
        return int(self._lengths[step][sample])

    def prompts(self, step: int) -> Sequence[int]:
        """Return the number of each prompt of a step in the data set."""
        found: list[int] = prompts_of(self.config.workload, seed=self._seed, step=step).tolist()
        return found

    def forget(self, step: int) -> None:
        self._lengths.pop(step, None)

    def open(self, hear: Callable[[ToServer], None]) -> int:
        self._streams += 1
        self._peers[self._streams] = hear
        return self._streams

    def ended(self, name: str, stream: int) -> None:
        """Note that a machine is no longer paid for."""
        self._peers.pop(stream, None)
        since = self._billed_since.pop(name, None)
        if since is not None:
            seconds = self.clock.now - since
            self._billed += seconds
            self._paid += seconds / 3600 * self.kind_of(name).price_per_hour

    def lap(self) -> dict[str, float]:
        """Return the billed seconds, bytes and dollars since the last call."""
        now = self.clock.now
        billed, paid = self._billed, self._paid
        for name, since in self._billed_since.items():
            billed += now - since
            paid += (now - since) / 3600 * self.kind_of(name).price_per_hour
        self.link.settle()
        columns = billed, self.link.sent_bytes, paid, self.link.sent_dollars
        names = "billed_instance_seconds", "egress_bytes", "instance_dollars", "egress_dollars"
        before, self._lap = self._lap, columns
        return {n: end - begin for n, end, begin in zip(names, columns, before, strict=True)}

    def deliver(self, event: Event) -> None:
        """Hand an event to the manager and carry out its effects, one event after the other."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        while self._inbox:
            for action in self.manager.handle(self._inbox.popleft(), self.clock.now):
                self._perform(action)
        self._handling = False
        self._arm()

    def _perform(self, action: Any) -> None:
        match action:
            case Send(stream, message):
                if stream == STREAM:
                    self.trainer.hear(cast(ToTrainer, message))
                elif stream in self._peers:
                    self._peers[stream](cast(ToServer, message))
            case Request(name, nonce):
                self._start(name, nonce)
            case Terminate(name, grace_seconds):
                self._terminate(name, notice=grace_seconds > 0)
            case Close(stream, _):
                self._peers.pop(stream, None)
            case Record("predicted", step, _, detail):
                self.predictions.append({**detail, "step": step})
            case Exit(code, reason):
                raise RuntimeError(f"the manager has left: {reason} ({code})")

    def _plan(self, change: MachineChange) -> None:
        if change.added:
            event: Event = MachineAdded(change.machine)
        else:
            kind = self._machines.kinds[kind_name(change.machine)]
            event = MachineRemoved(change.machine, kind.notice_seconds > 0)
        self.clock.at(change.seconds, lambda: self.deliver(event))

    def _start(self, name: str, nonce: str) -> None:
        self._kinds[name] = kind_name(self.manager.owners.fleet.servers[name].machine)
        server = self._server(self, name, nonce, reserved=False)
        self._servers[name] = server
        self._billed_since[name] = self.clock.now
        self.deliver(Granted(name, nonce))
        self.deliver(Started(name, nonce))
        seconds = self.kind_of(name).start_seconds
        if self.clock.now == 0:
            seconds = 0.0
            self.manager.was_there(name)
        self.clock.after(seconds, server.connect)

    def _terminate(self, name: str, *, notice: bool) -> None:
        server = self._servers.pop(name, None)
        if server is None:
            return
        if not notice:
            server.kill("the market")
            return
        seconds = self.kind_of(name).notice_seconds
        self.clock.after(0.0, lambda: server.notice(seconds))
        self.clock.after(seconds, lambda: server.kill("the market"))

    def _arm(self) -> None:
        deadline = self.manager.next_deadline()
        if deadline is None or deadline >= self._tick_at or deadline > self._seconds:
            return
        self._tick_at = deadline
        self.clock.at(deadline, self._tick)

    def _tick(self) -> None:
        if self.clock.now >= self._tick_at:
            self._tick_at = float("inf")
            self.deliver(Tick())

    def done(self) -> bool:
        steps = self.config.num_steps
        return bool(steps) and len(self.trainer.rows) >= steps


def settings(config: SimConfig, machines: Machines | None = None) -> Settings:
    """Settings of a simulated manager: a run's, with leases that need no renewal."""
    policy, work = config.policy, config.workload
    manager = ManagerConfig(
        **_named_alike(ManagerConfig, policy),
        lease_seconds=PATIENT,
        longest_lease_seconds=PATIENT,
        renew_seconds=PATIENT / 4,
        progress_seconds=PATIENT,
    )
    machines = machines or Machines.of(config)
    fleet = FleetConfig(
        **_named_alike(FleetConfig, policy),
        price_per_hour=machines.price_per_hour,
        reserved_price_per_hour=config.reserved.nodes * config.reserved.price_per_node_hour,
        egress_dollars_per_gb=config.instance.egress_dollars_per_gb,
        orphan_seconds=PATIENT,
        notice_seconds=machines.notice_seconds,
        chaos=ChaosConfig(),
        pools=machines.pools,
    )
    return Settings(
        run_id="simulated",
        manager=manager,
        fleet=fleet,
        deterministic=config.trainer.deterministic,
        vocab_size=2,
        slots=max(config.engine.slots, config.engine.reserved_slots),
        slot_tokens=work.slot_tokens,
        max_servers=MAX_SERVERS,
        micro_batch_prompts=config.trainer.micro_batch_prompts,
        num_steps=config.num_steps,
        lag=config.trainer.lag,
        drafts=config.engine.most_drafts > 0,
        kept_tokens=policy.kept_tokens,
        siblings_follow=policy.siblings_follow,
        status_seconds=PATIENT,  # nobody looks at the live view
        informs=False,  # … or at what other fleets would bring: that takes as long as all else
    )


def _named_alike(record: type[ManagerConfig] | type[FleetConfig], policy: PolicyConfig) -> Any:
    """Copy the settings that a record shares with a simulation's policy."""
    names = {field.name for field in fields(record)} & {field.name for field in fields(policy)}
    return {name: getattr(policy, name) for name in names}
