"""The manager's edge: frames, processes and clocks become events, actions become effects.

Nothing here decides and nothing here waits for a peer: `apply` hands an event to the
state machine and queues what comes back. A mistake in the state machine ends the process.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from aiohttp import web

from rlboost_jax.manager.events import (
    Action,
    Close,
    Event,
    Exit,
    FromTrainer,
    InstanceExited,
    MachineAdded,
    MachineRemoved,
    Record,
    Send,
    ServerGone,
    Signal,
    Stalled,
    Start,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.peer import Peer
from rlboost_jax.manager.state import Manager
from rlboost_jax.messages import BeginStep, encode

SERVER_QUEUE_BYTES = 64 * 2**20  # unsent frames of one server
TRAINER_QUEUE_BYTES = 2 * 2**30  # a resumed step is sent again in one go
STALL_SECONDS = 0.25  # a timer as late as this was late because the whole process was

log = logging.getLogger(__name__)


class Provider(Protocol):
    """What starts servers; `rlboost_jax.fleet.local.LocalProvider` is one."""

    async def start(self, instance: str) -> int: ...

    async def signal(self, target: str, number: signal.Signals) -> bool: ...

    async def close(self) -> None: ...


class Driver:
    """
    Args:
        record: writes a line of events.jsonl; called with the time in seconds since the epoch.
    """

    def __init__(self, manager: Manager, record: Callable[[float, Record], None]) -> None:
        self.manager = manager
        self.finished: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()  # set by the first step
        self.provider: Provider | None = None
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, Peer] = {}
        self._streams = 0
        self._timer: asyncio.TimerHandle | None = None
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._arm()

    def now(self) -> float:
        """Seconds on the clock that events are stamped with."""
        return self._loop.time()

    def open(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport | None, *, trainer: bool
    ) -> int:
        """Number a new stream and begin sending on it."""
        self._streams += 1
        stream = self._streams
        gone = TrainerGone if trainer else ServerGone
        self._peers[stream] = Peer(
            socket,
            transport,
            bound=TRAINER_QUEUE_BYTES if trainer else SERVER_QUEUE_BYTES,
            # Not at once: the action that overflows it is still being carried out.
            overflow=lambda reason: self._loop.call_soon(self._give_up, gone(stream, reason)),
        )
        return stream

    async def shut(self, stream: int, reason: str) -> None:
        """The reading side of a stream has ended; returns when the sending side has, too."""
        peer = self._peers.pop(stream)
        peer.close(reason)
        await peer.ended()

    def apply(self, event: Event) -> None:
        """Hand over an event and do what it calls for."""
        if isinstance(event, FromTrainer) and isinstance(event.message, BeginStep):
            self.begun.set()
        try:
            for action in self.manager.handle(event, self.now()):
                self._perform(action)
            self._arm()
        except Exception as error:
            # Half-taken decisions cannot be repaired here: the process ends with the cause.
            if not self.finished.done():
                self.finished.set_exception(error)
            raise

    async def follow(self, market: AsyncIterator[MachineAdded | MachineRemoved]) -> None:
        async for event in market:
            self.apply(event)

    async def close(self) -> None:
        """Let what was sent leave, then end all streams and the provider's servers."""
        if self._timer is not None:
            self._timer.cancel()
        for peer in self._peers.values():
            peer.close("the manager leaves")
        for task in (*self._starting.values(), *self._tasks):
            task.cancel()
        await asyncio.gather(*(peer.ended() for peer in list(self._peers.values())))
        if self.provider is not None:
            await self.provider.close()

    def _give_up(self, event: ServerGone | TrainerGone) -> None:
        self.apply(event)
        if event.stream in self._peers:
            self._peers[event.stream].close(event.reason)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(stream, message):
                if stream in self._peers:
                    self._peers[stream].send(encode(message))
            case Close(stream, reason):
                if stream in self._peers:
                    self._peers[stream].close(reason)
            case Record():
                self._record(time.time(), action)
            case Start(instance):
                task = self._spawn(self._start(instance))
                self._starting[instance] = task
                task.add_done_callback(lambda _: self._starting.pop(instance, None))
            case Signal(instance, notice):
                self._spawn(self._signal(instance, notice))
            case Exit():
                log.info("leaving: %s", action.reason)
                if not self.finished.done():
                    self.finished.set_result(action)

    async def _start(self, instance: str) -> None:
        assert self.provider is not None
        try:
            await self.provider.start(instance)
        except (RuntimeError, OSError) as error:  # tried again after a pause
            self.apply(InstanceExited(instance, str(error)))

    async def _signal(self, instance: str, notice: bool) -> None:
        assert self.provider is not None
        if instance in self._starting:
            await asyncio.wait([self._starting[instance]])
        await self.provider.signal(instance, signal.SIGTERM if notice else signal.SIGKILL)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _arm(self) -> None:
        """Have `_tick` called at the next deadline. A timer that is early does no harm."""
        deadline = self.manager.next_deadline()
        if deadline is None:
            return
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._tick, deadline)

    def _tick(self, due: float) -> None:
        self._timer = None
        late = self.now() - due
        self.apply(Stalled(late) if late > STALL_SECONDS else Tick())
