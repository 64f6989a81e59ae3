"""A whole run in virtual time and one thread: servers, a trainer, a network and their faults.

Only the manager is real.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Close,
    Event,
    Exit,
    FromServer,
    InstanceExited,
    Record,
    Send,
    ServerGone,
    ServerStarted,
    Signal,
    Start,
    Tick,
)
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state import Manager
from tests.manager.fakes import batch, hello, length, token


@dataclass
class Held:
    """A rollout at a server."""

    request: m.GenerateRequest
    position: int
    digest: str  # of the weights that it is sampled from


class World:
    """Time, the manager, and the wires to it.

    `check` is called after every event. Frames of one stream and direction keep their order;
    a stream cut by its server may lose the frames that were under way.
    """

    def __init__(self, chosen: Settings, seed: int, check: Callable[["World"], None]) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.manager = Manager(chosen)
        self.settings = chosen
        self.servers: list[Server] = []
        self.trainer: Any = None
        self.records: list[Record] = []
        self.exit: Exit | None = None
        self.sampled = 0  # tokens, by all engines
        self.ready: dict[int, tuple[int, str]] = {}  # stream → what it last said to hold
        self.transmit: Callable[[Server, m.TokenBatch], None] = Server.say
        self._check = check
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._streams: dict[int, Any] = {}
        self._wires: dict[tuple[int, bool], float] = {}
        self._tick_at = float("inf")

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self._at(self.now + seconds, what)

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass; raises if `until` does not come true within `limit` seconds."""
        while not until():
            if not self._events or self._events[0][0] > limit:
                raise AssertionError(f"not done at {self.now:.2f} s")
            self.now, _, what = heapq.heappop(self._events)
            what()

    def open(self, owner: Any) -> int:
        stream = len(self._streams) + 1
        self._streams[stream] = owner
        return stream

    def up(self, stream: int, event: Event) -> None:
        """Put an event on the wire to the manager."""
        self._on_wire(stream, True, lambda: self.deliver(event))

    def deliver(self, event: Event) -> None:
        if isinstance(event, FromServer) and isinstance(event.message, m.Ready):
            self.ready[event.stream] = event.message.version, event.message.params_digest
        for action in self.manager.handle(event, self.now):
            self._perform(action)
        self._check(self)
        deadline = self.manager.next_deadline()
        if deadline is not None and deadline < self._tick_at:
            self._tick_at = deadline
            self.later(max(0.0, deadline - self.now), self._tick)

    def _tick(self) -> None:
        self._tick_at = float("inf")
        self.deliver(Tick())

    def _perform(self, action: Any) -> None:
        match action:
            case Send(stream, message):
                if isinstance(message, m.Generate):
                    named = {(r.version, message.params_digest) for r in message.requests}
                    assert named == {self.ready[stream]}
                self._down(stream, lambda: self._streams[stream].hear(stream, message))
            case Close(stream, _):
                self._down(stream, lambda: self._streams[stream].hung_up(stream))
            case Record():
                self.records.append(action)
            case Start(name):
                server = Server(self, name=name)
                self.later(0.2, server.connect)
                started = ServerStarted(name, server.pid)
                self.later(self.random.uniform(0.1, 0.25), lambda: self.deliver(started))
            case Signal(name, notice):
                for server in self.servers:
                    if server.name == name and server.alive:
                        server.notice() if notice else server.kill()
            case Exit():
                self.exit = action

    def _down(self, stream: int, what: Callable[[], None]) -> None:
        self._on_wire(stream, False, what)

    def _on_wire(self, stream: int, up: bool, what: Callable[[], None]) -> None:
        wire = stream, up
        arrival = self.now + self.random.uniform(0.001, 0.02)
        self._wires[wire] = arrival = max(arrival, self._wires.get(wire, 0.0))
        self._at(arrival, what)

    def _at(self, moment: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), what))


class Server:
    """A rollout server: slots, a queue, dispatches of a few tokens, one version of weights."""

    def __init__(self, world: World, *, name: str = "", reserved: bool = False) -> None:
        self.world, self.name, self.reserved = world, name, reserved
        self.pid = 100 + len(world.servers)
        self.slots = 2
        self.alive = True
        self.frozen = False
        self.speed = world.random.uniform(0.02, 0.1)  # seconds a dispatch
        self.stream = 0
        self.leaving = False
        self._gone = False  # the stream has ended and the manager was told
        self._missed: list[Callable[[], None]] = []
        self.version, self.digest = -1, ""
        world.servers.append(self)

    def connect(self) -> None:
        if not self.alive:
            return
        self.stream = self.world.open(self)
        self.held: dict[int, Held] = {}
        self._asked: list[int] = []  # to be released after the dispatch
        self._busy = self._gone = False
        self._sequence = 0
        self._welcome = False
        self._pull = 0
        self._pulling: m.Manifest | None = None
        name, reserved = self.name, self.reserved
        self.say(hello(instance=name, reserved=reserved, slots=self.slots, pid=self.pid))
        if self.reserved and self.version >= 0:
            self._say_ready()
        self._renew(self.stream)

    def say(self, message: m.ServerMessage) -> None:
        self.world.up(self.stream, FromServer(self.stream, message))

    # Faults

    def kill(self) -> None:
        self.alive = False
        self.world.up(self.stream, ServerGone(self.stream, "killed"))
        if self.name.startswith("local-"):
            name = self.name
            self.world.later(0.05, lambda: self.world.deliver(InstanceExited(name, "killed")))

    def notice(self) -> None:
        """SIGTERM: what there is has been sent; goodbye."""
        if self._gone or self.frozen:
            return self.kill()
        self.say(m.Goodbye(reason="SIGTERM"))
        self.kill()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        missed, self._missed = self._missed, []
        for what in missed:
            what()
        if self.alive:
            self._renew(self.stream)

    # What it hears

    def hear(self, stream: int, message: m.ToServer) -> None:
        if self._absent(stream, lambda: self.hear(stream, message)):
            return
        match message:
            case m.Generate(requests=requests, params_digest=digest):
                for request in requests:
                    self._take(request, digest)
                self._dispatch()
            case m.Release(request_ids=ids):
                self._asked += m.unpack_ids(ids).tolist()
                if not self._busy:
                    self._release()
            case m.Announce(manifest=chosen):
                # What was being pulled may be on its way into the engine and past recall.
                if self._pulling and not self._busy and self.world.random.random() < 0.3:
                    self._load(self._pulling.version, self._pulling.params_digest)
                self._pull, self._pulling = self._pull + 1, chosen
                self._fetch(self.stream, chosen, self._pull)
            case m.Leave():
                self.say(m.Goodbye(reason="told to"))
                self.kill()

    def hung_up(self, stream: int) -> None:
        """The manager gave this stream up: begin another."""
        if self._absent(stream, lambda: self.hung_up(stream)) or self._gone:
            return
        self._gone = True
        self.world.later(0.1, self.connect)

    def offer(self, version: int, digest: str) -> None:
        """The trainer's own engine is handed its weights; it takes them between dispatches."""
        self._offered = version, digest
        if self._busy:
            self._asked += list(self.held)
            self.world.later(0.02, lambda: self.offer(*self._offered))
        elif self.alive:
            self._load(version, digest)
            self._say_ready()

    def _absent(self, stream: int, what: Callable[[], None]) -> bool:
        if self.frozen:
            self._missed.append(what)
        return self.frozen or not self.alive or stream != self.stream

    def _take(self, request: m.GenerateRequest, digest: str) -> None:
        if (request.version, digest) != (self.version, self.digest):
            self._asked.append(request.request_id)
            if not self._busy:
                self._release()
            return
        had = m.unpack_tokens(request.response_tokens).tolist()
        expected = [token(self.digest, request.step, request.sample, i) for i in range(len(had))]
        assert had == expected, "resumed with the wrong tokens"
        assert len(had) < length(self.digest, request.step, request.sample)
        self.held[request.request_id] = Held(request, len(had), self.digest)

    def _fetch(self, stream: int, chosen: m.Manifest, pull: int) -> None:
        def done() -> None:
            if self._absent(stream, done) or pull != self._pull:
                return
            if self._busy:
                self._asked += list(self.held)
                self.world.later(0.02, done)
                return
            if self.world.random.random() < 0.1:
                self.say(m.WeightsRejected(version=chosen.version, reason="one bit flipped"))
                self._fetch(stream, chosen, pull)
                return
            self._pulling = None
            self._load(chosen.version, chosen.params_digest)
            self._say_ready()

        self.world.later(self.world.random.uniform(0.05, 0.3), done)

    def _load(self, version: int, digest: str) -> None:
        """Give back what is held and swap the weights; the engine is idle."""
        self._asked += list(self.held)
        self._release()
        self.version, self.digest = version, digest

    def _say_ready(self) -> None:
        self.say(m.Ready(version=self.version, params_digest=self.digest))

    # What it does

    def _renew(self, stream: int) -> None:
        if not self.alive or self.frozen or stream != self.stream or self._gone:
            return
        self.say(m.Renew())
        self.world.later(self.world.settings.manager.renew_seconds, lambda: self._renew(stream))

    def _running(self) -> list[tuple[int, Held]]:
        return list(itertools.islice(self.held.items(), self.slots))

    def _dispatch(self) -> None:
        if self._busy or not self.held:
            return
        self._busy = True
        self._send([])
        self._go_on()

    def _go_on(self) -> None:
        stream = self.stream
        plan = [(r, h, self.world.random.randint(1, 4)) for r, h in self._running()]

        def done() -> None:
            if self._absent(stream, done):
                return
            rows = []
            for request_id, held, count in plan:
                key = held.digest, held.request.step, held.request.sample
                whole = length(*key)
                upto = min(whole, held.position + count)
                row = [token(*key, i) for i in range(held.position, upto)]
                self.world.sampled += len(row)
                rows.append((request_id, row))
                held.position = upto
                if upto == whole:
                    del self.held[request_id]
            for request_id in self._asked:
                self.held.pop(request_id, None)
            self._busy = bool(self.held)
            self._send(rows, version=plan[0][1].request.version)
            self._asked, asked = [], self._asked
            if asked:
                self.say(m.Released(request_ids=m.pack_ids(asked)))
            if self._busy:
                self._go_on()

        self.world.later(self.speed * self.world.random.uniform(0.7, 1.3), done)

    def _release(self) -> None:
        ids, self._asked = self._asked, []
        for request_id in ids:
            self.held.pop(request_id, None)
        if ids:
            self.say(m.Released(request_ids=m.pack_ids(ids)))

    def _send(self, rows: list[tuple[int, list[int]]], version: int | None = None) -> None:
        """A token batch with what the next dispatch may yield; sometimes it goes wrong."""
        running = len(self._running()) if self._busy else 0
        message = batch(
            self._sequence,
            self.version if version is None else version,
            rows,
            in_flight=4 * running,
            running=running,
            waiting=len(self.held) - running if self._busy else 0,
        )
        self._sequence += 1
        self.world.transmit(self, message)
