"""The manager's edge: frames, the provider's words and clocks become events, actions effects.

Nothing here decides and nothing here waits for a peer: `apply` hands an event to the
state machine and queues what comes back. A mistake in the state machine ends the process.

Invariant: an action is carried out after all entries of its event and of earlier events are in the
journal, and after all earlier actions. Only answers to renewals, which say nothing of what is
kept, wait for no disk.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from aiohttp import web

from rlboost_jax.manager.events import (
    Action,
    Append,
    Close,
    DiskWaited,
    Event,
    Exit,
    FromTrainer,
    MachineAdded,
    MachineRemoved,
    Priced,
    Record,
    Request,
    Send,
    ServerGone,
    Stalled,
    Terminate,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.ordered_effects import OrderedEffects
from rlboost_jax.manager.service.peer import SERVER_QUEUES_BYTES, Peer, Unsent
from rlboost_jax.manager.service.replay import replay
from rlboost_jax.messages import BeginBatch, Manifest, Renewed, Serves, ToServer, ToTrainer, encode
from rlboost_jax.platform.busy import busy_now
from rlboost_jax.providers.base import Provider
from rlboost_jax.trust.peer_limits import trainer_queue_bytes

SERVER_QUEUE_BYTES = 64 * 2**20  # unsent frames of one server
PULSE_SECONDS = 0.25  # from one sign of life of the loop to the next, at most
STALL_SECONDS = 0.25  # a timer as late as this was late because the whole process was

# (event, what was done about it, when that began and ended on the manager's clock)
Watch = Callable[[Event, Sequence[Action], float, float], None]
# Writes entries to the journal and then calls back, in the event loop, with "" or why it failed.
Keep = Callable[[Sequence[Entry], Callable[[str], None]], None]

log = logging.getLogger(__name__)


class Driver:
    """
    Args:
        record: writes a line of events.jsonl; called with the time in seconds since the epoch.
        keep: writes to the journal; left out: there is none.
        watch: is shown every event with what came of it; must not raise.
        route_bytes: that come with each token.
        serve: called with the versions whose files may be fetched, before a new one is announced.
        server_queue_bytes: of unsent frames that a server may leave unread.
        recovers: `recover` comes before anything else.
        date: of now, in seconds since the epoch.

    Attributes:
        recovered: set once streams may be opened.
    """

    def __init__(
        self,
        manager: Manager,
        record: Callable[[float, Record], None],
        keep: Keep = lambda entries, done: done(""),
        watch: Watch | None = None,
        route_bytes: int = 0,
        serve: Callable[[Iterable[Manifest]], None] = lambda manifests: None,
        server_queue_bytes: int = SERVER_QUEUE_BYTES,
        recovers: bool = False,
        date: Callable[[], float] = time.time,
    ) -> None:
        self.manager = manager
        self._server_queue_bytes = server_queue_bytes
        self._unsent = Unsent(max(SERVER_QUEUES_BYTES, server_queue_bytes))
        self._trainer_queue_bytes = trainer_queue_bytes(route_bytes)
        self._keep, self._watch, self._serve = keep, watch, serve
        self._effects = OrderedEffects(lambda: self.now())
        self.finished: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()  # set by the first step
        self._provider: Provider | None = None
        self._record, self._date, self._streams = record, date, 0
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, Peer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when the timer should call, on the clock of `now`
        self._ran_at = self.now()  # when the loop was last seen to run
        self._closing = False
        self._requests: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.recovered = asyncio.Event()
        self._early: list[Event] = []  # that came before
        if not recovers:
            self.recovered.set()
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
            bound=self._trainer_queue_bytes if trainer else self._server_queue_bytes,
            unsent=Unsent(self._trainer_queue_bytes) if trainer else self._unsent,
            # Not at once: the action that overflows it is still being carried out.
            overflow=lambda reason: self._loop.call_soon(self._lose, gone(stream, reason)),
        )
        return stream

    def send(self, stream: int, message: ToServer | ToTrainer) -> None:
        """Queue a message for a peer, if it is still there."""
        if stream in self._peers:
            self._peers[stream].send(encode(message))

    async def shut(self, stream: int, reason: str) -> None:
        """End a stream whose receiving side has ended; returns when the sending side has, too."""
        try:
            await self._settled()
        finally:
            peer = self._peers.pop(stream)
            peer.close(reason)
        await peer.ended()

    def apply(self, event: Event) -> None:
        """Pass an event to the state machine and carry out its actions."""
        if isinstance(event, FromTrainer) and isinstance(event.message, BeginBatch):
            self.begun.set()
        if self._closing:
            return
        if not self.recovered.is_set():
            self._early.append(event)
            return
        now = self.now()
        stalled, self._ran_at = now - self._ran_at, now
        try:
            if now - self._due > STALL_SECONDS:  # stood still, or had too much to do to listen
                self._handle(Stalled(max(stalled, now - self._due)), now)
                self._due = now
            self._excuse(now)
            self._handle(event, now)
            self._arm()
        except Exception as error:
            # Half-taken decisions cannot be repaired here: the process ends with the cause.
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """End the process with an exception that no caller would see."""
        if not self.finished.done():
            self.finished.set_exception(error)

    async def recover(self, parts: AsyncIterator[Sequence[Entry]]) -> None:
        """Restore from the entries of an earlier manager, letting other tasks run in between.

        If the process is asked to end meanwhile, it reads no further; the journal stays as it is.

        Args:
            parts: of its entries, in order.
        """
        now = self.now()
        await replay(
            parts,
            lambda entry: self.manager.restore(entry, now),
            ends=lambda: bool(self._early),
            clock=self.now,
        )
        self._ran_at = self.now()
        actions = self.manager.restored(self._ran_at)
        self._serve(self.manager.view.served)
        self._perform_all(actions)
        self.recovered.set()
        self._arm()
        for event in self._early:
            self.apply(event)

    async def employ(self, provider: Provider, *, found_us: bool = True) -> None:
        """Use this provider, beginning with the instances that it already runs.

        Args:
            found_us: these look for a manager where this one is. Elsewhere they would never find
                it: they are terminated, and count until they are gone.
        """
        self._provider = provider
        listed = await provider.list()
        for instance in listed:
            self.apply(instance)
        self._spawn(self._hear(provider))
        for instance in () if found_us else listed:
            await provider.terminate(instance.name, 0.0)

    def follow(self, market: AsyncIterator[MachineAdded | MachineRemoved | Priced]) -> None:
        """Apply the market's machines and prices until `close`."""
        self._spawn(self._follow(market))

    async def close(self) -> None:
        """Send what is queued, then end all streams and the provider's servers."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._settled()
        for peer in self._peers.values():
            peer.close("the manager leaves")
        requests = list(self._requests)  # a machine may be there already: they go on
        others = self._tasks.difference(requests)
        for task in others:
            task.cancel()
        await asyncio.gather(*(peer.ended() for peer in list(self._peers.values())))
        if self._provider is not None:
            await self._provider.close()
        await asyncio.gather(*requests, *others, return_exceptions=True)

    def _handle(self, event: Event, now: float) -> None:
        actions = self.manager.handle(event, now)
        if isinstance(event, FromTrainer) and isinstance(event.message, Serves):
            self._serve(self.manager.view.served)
        self._perform_all(actions)
        if self._watch is not None:
            self._watch(event, actions, now, self.now())

    async def _follow(self, market: AsyncIterator[MachineAdded | MachineRemoved | Priced]) -> None:
        async for event in market:
            self.apply(event)

    def _lose(self, event: ServerGone | TrainerGone) -> None:
        self.apply(event)
        if event.stream in self._peers:
            self._peers[event.stream].close(event.reason)

    def _perform_all(self, actions: Iterable[Action]) -> None:
        """Carry out one event's actions, each after the journal entries it depends on."""
        for action in actions:
            match action:
                case Append(entries):
                    self._effects.begin()
                    self._keep(entries, self._through)
                case Send(stream, Renewed() as answer):
                    self.send(stream, busy_now(answer))
                case _:
                    self._effects.take(partial(self._perform, action))

    def _through(self, problem: str) -> None:
        """The oldest `Append` begun is written, or failed with `problem`."""
        try:
            self._excuse(self.now())
            if problem:
                log.error("the journal cannot be written: %s", problem)
                self._record(self._date(), Record("journal", -1, "", {"reason": problem}))
            self._effects.through()
        except Exception as error:
            self.fail(error)
            raise

    def _excuse(self, now: float) -> None:
        """Excuse peers from progress while the disk delays what they wait for."""
        waited = self._effects.kept_back(STALL_SECONDS)
        if waited and not self._closing:
            self._handle(DiskWaited(waited), now)

    async def _settled(self) -> None:
        """Wait until all actions so far are carried out."""
        settled = asyncio.Event()
        self._effects.take(settled.set)
        await settled.wait()

    def _perform(self, action: Action) -> None:
        match action:
            case Append():
                raise AssertionError("entries are not carried out but kept")
            case Send(stream, message):
                self.send(stream, message)
            case Close(stream, reason):
                if stream in self._peers:
                    self._peers[stream].close(reason)
            case Record():
                self._record(self._date(), action)
            case Request(instance, nonce, pool):
                assert self._provider is not None
                task = self._spawn(self._provider.request(instance, nonce, pool))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            case Terminate(instance, grace_seconds):
                assert self._provider is not None
                self._spawn(self._provider.terminate(instance, grace_seconds))
            case Exit():
                log.info("leaving: %s", action.reason)
                if not self.finished.done():
                    self.finished.set_result(action)
            case _ as never:
                assert_never(never)

    async def _hear(self, provider: Provider) -> None:
        async for event in provider.events():
            self.apply(event)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _arm(self) -> None:
        """Schedule `_tick` for the next deadline, or earlier, which does no harm.

        It comes late only where the whole loop did not run, and then nobody could be heard.
        """
        deadline = self.manager.next_deadline()
        if deadline is None:
            return
        due = max(self._ran_at, min(deadline, self._ran_at + PULSE_SECONDS))
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.apply(Tick())
