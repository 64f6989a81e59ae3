"""Client of a manager: a rollout server dials it, and serves stream after stream.

Invariants: of several announced versions only the last is pulled; however a stream ends, this
side either dials again or leaves, never both. The trainer's own engine leaves with its trainer
only: managers may go and come meanwhile.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from rlboost_jax.messages import (
    Capacity,
    Goodbye,
    Hello,
    Hint,
    Notice,
    Ready,
    ServerMessage,
    Welcome,
)
from rlboost_jax.observe.clocks import RemoteClock
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.platform.congestion import dialling_socket
from rlboost_jax.rollout import manager_stream
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.log_lines import LogLines
from rlboost_jax.rollout.manager_stream import ManagerStream, ServerRejected, cancel
from rlboost_jax.rollout.narration import ServerStatus
from rlboost_jax.rollout.teacher_updates import ScorerLike, TeacherUpdates
from rlboost_jax.rollout.weight_updates import PullerLike, WeightUpdates
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.credentials import COPY_AGAIN, RECOVERS, Endpoint, explain
from rlboost_jax.weights.peers.exchange import PeerExchange

FAILURE_LETTERS = 300  # of the message of a failed engine
FIRST_BACKOFF_SECONDS = 0.1  # doubles with each attempt
LONGEST_BACKOFF_SECONDS = 2.0
SETTLED_SECONDS = 5.0  # a stream that lived as long was a good one: the back-off begins anew


class InstanceClient:
    """One instance of a manager's fleet.

    Args:
        locate: finds the manager; called from a worker thread each time it is dialled. An
            exception of it ends `run`.
        hello: first message of every stream. A `reserved` instance belongs to a trainer: it
            looks for a manager as long as it takes, and none can send it home.
        worker: not yet started. Its spans are sent to the manager; of a `reserved` instance the
            trainer has its own use for them.
        puller: None for the trainer's own engine, which is given its parameters by `offer`.
        teachers: pulls teachers; None as for `puller`. It is another one: each keeps what lasts.
        scorer: holds teachers; None where there is no room for any.
        orphan_seconds: how long to look for a manager; a `Welcome` replaces it.
        compiled: how many programs were compiled since the engine was warm.
        clock: the manager's; what its answers say of it is put in here.
        leave_seconds: for the last tokens and the goodbye.
        settled_seconds: a stream that lived as long was a good one.
        backoff: seconds to wait after so many attempts, the first being 0.
        reach: called with the port for weights in each answer to `hello`.
        log: what this server prints; its manager is sent it. None: it is not.
        peers: fetches weights from other servers; None: this one does not.
        bid: called with what the device is worth to the run; 0 while there is no manager.
    """

    def __init__(
        self,
        locate: Callable[[], Endpoint],
        hello: Hello,
        worker: EngineWorker,
        puller: PullerLike | None,
        *,
        teachers: PullerLike | None = None,
        scorer: ScorerLike | None = None,
        orphan_seconds: float = 10.0,
        compiled: Callable[[], int] = lambda: 0,
        clock: RemoteClock | None = None,
        leave_seconds: float = manager_stream.LEAVE_SECONDS,
        settled_seconds: float = SETTLED_SECONDS,
        backoff: Callable[[int], float] | None = None,
        reach: Callable[[int], None] = lambda port: None,
        log: LogLines | None = None,
        peers: PeerExchange | None = None,
        bid: Callable[[float], None] = lambda price: None,
    ):
        self._log, self._peers, self._bid = log, peers, bid
        if peers is not None:
            peers.say = self._say
        self._leave_seconds, self._settled_seconds = leave_seconds, settled_seconds
        self._backoff = backoff or _backoff
        self._locate, self._hello, self._worker, self._puller = locate, hello, worker, puller
        self._orphan_seconds = math.inf if hello.reserved else orphan_seconds
        self._compiled = compiled
        self._clock, self._reach = clock or RemoteClock(), reach
        self._stream: ManagerStream | None = None  # of this moment, or the last
        self._updates: WeightUpdates | None = None
        self._teacher_puller, self._scorer = teachers, scorer
        self._teachers: TeacherUpdates | None = None
        self._offered: Ready | None = None  # what to say of the parameters offered
        self._capacity: Capacity | None = None  # of a shared device, as it is now
        self._goes: tuple[float, str] | None = None  # when the machine does, and who says so
        self._failed = False
        self._leaving: asyncio.Future[str] | None = None  # its result is the reason
        self._welcomed = False  # a manager knows this instance
        self._broken: asyncio.Future[None]  # its exception is a mistake of this side
        self._lost_at = 0.0  # when there was last a manager, by the loop's clock
        self._attempt = 0  # dials since a stream was good
        self._trouble = ""  # why the last one failed, if that can be changed

    async def run(self) -> str:
        """Serve until asked to leave or orphaned; returns the reason.

        Raises:
            Refused: by the manager.
            Exception: whatever the engine or `locate` raised.
        """
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        if self._puller is not None:
            self._updates = WeightUpdates(
                self._puller,
                self._worker,
                say=self._say,
                fail=self._broken.set_exception,
                spans=self._worker.spans,
            )
        if self._teacher_puller is not None:
            self._teachers = TeacherUpdates(
                self._teacher_puller,
                self._worker,
                self._scorer,
                say=self._say,
                note=print if self._log is None else self._log.say,
                fail=self._broken.set_exception,
            )
        if self._leaving is None:
            self._leaving = loop.create_future()

        def emit(message: ServerMessage) -> None:
            # On the stream of that moment: a message of an earlier one never meets a later one.
            loop.call_soon_threadsafe(self._emitted, message)

        self._worker.start(emit)
        failure = asyncio.wrap_future(self._worker.failure)
        serving = asyncio.ensure_future(self._serve_all())
        ends: set[asyncio.Future[Any]] = {serving, failure, self._broken}
        try:
            await asyncio.wait({*ends, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not any(end.done() for end in ends):  # leaving; a manager may be out of reach
                patience = self._leave_seconds + manager_stream.CLOSE_SECONDS
                await asyncio.wait(ends, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._report_failure(serving, (failure, self._broken))
            for end in ends:
                if end.done():
                    end.result()
            return serving.result() if serving.done() else self._leaving.result()
        finally:
            failure.cancel()
            await cancel(serving)

    def seen(self) -> ServerStatus:
        """Status of the server now."""
        return ServerStatus(
            connected=self._welcomed,
            trouble=self._trouble,
            version=self._worker.version,
            tokens=self._worker.sampled,
            held=self._worker.held,
        )

    def leave(self, reason: str) -> None:
        """Flush, say goodbye and end `run`. To be called in its event loop; once is enough."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_future()
        if not self._leaving.done():
            self._leaving.set_result(reason)

    def notice(self, seconds: float, reason: str) -> None:
        """Report that the machine goes in so many seconds, and leave by then at the latest.

        To be called in the loop of `run`. Of several notices the earliest counts.
        """
        loop = asyncio.get_running_loop()
        goes_at = loop.time() + seconds
        if self._goes is not None and self._goes[0] <= goes_at:
            return
        self._goes = goes_at, reason
        loop.call_at(goes_at, self.leave, reason)
        if self._welcomed:
            self._say(Notice(seconds=seconds, reason=reason))

    def hint(self, reason: str) -> None:
        """Report that the machine may go some time, or pause; for the events only."""
        if self._welcomed:
            self._say(Hint(reason=reason))

    async def offer(self, params: Any, version: Version, params_digest: str) -> None:
        """Load parameters that are already here and report it; for an instance without puller."""
        await asyncio.wrap_future(self._worker.load(params, version, params_digest))
        self._offered = Ready(version=version, params_digest=params_digest)
        if self._welcomed:
            self._say(self._offered)

    async def _serve_all(self) -> str:
        """Serve one stream after the other; returns the reason to leave."""
        assert self._leaving is not None
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=manager_stream.ANSWER_SECONDS)
        self._lost_at, self._attempt = loop.time(), 0
        connector = aiohttp.TCPConnector(socket_factory=dialling_socket)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while not self._leaving.done():
                manager = await asyncio.to_thread(self._locate)
                self._trouble, recovers = "", False
                try:
                    await self._serve_one(session, manager)
                except aiohttp.WSServerHandshakeError as error:
                    if error.status in (401, 403):
                        raise ServerRejected(f"wrong token; {COPY_AGAIN}") from None
                    if error.status == RECOVERS:  # there is a manager: this one is no orphan
                        self._lost_at, self._attempt, recovers = loop.time(), 0, True
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    # Not there: as if the stream had ended. What listens at its address may be
                    # another program for a while, so not even a wrong certificate ends the search.
                    self._trouble = explain(error)
                if self._leaving.done():
                    break
                if self._failed:
                    return "failed"
                if not recovers and loop.time() - self._lost_at >= self._orphan_seconds:
                    trouble = f": {self._trouble}" if self._trouble else ""
                    return f"no manager for {self._orphan_seconds:g} s{trouble}"
                # A whole fleet comes back to one manager: not at one moment.
                pause = self._backoff(self._attempt) * random.uniform(0.5, 1.0)
                await asyncio.wait({self._leaving}, timeout=pause)
                self._attempt += 1
        return self._leaving.result()

    async def _serve_one(self, session: aiohttp.ClientSession, manager: Endpoint) -> None:
        """Serve one stream; raises what `ManagerStream.serve` does."""
        assert self._leaving is not None
        await asyncio.wrap_future(self._worker.reset())
        self._stream = ManagerStream(
            self._hello,
            self._worker,
            compiled=self._compiled,
            pulled=lambda: 0 if self._puller is None else self._puller.pulled.total,
            clock=self._clock,
            updates=self._updates,
            teachers=self._teachers,
            leave=self.leave,
            leaving=self._leaving,
            leave_seconds=self._leave_seconds,
            log=self._log,
            sources=None if self._peers is None else self._peers.fetch_from,
            bid=self._bid,
        )
        await self._stream.serve(session, manager, self._known)

    @contextlib.asynccontextmanager
    async def _known(self, answer: Welcome) -> AsyncIterator[None]:
        """Context while the manager knows this instance.

        On entry it is sent what it does not know.
        """
        loop = asyncio.get_running_loop()
        if not self._hello.reserved:
            self._orphan_seconds = answer.orphan_seconds
        self._reach(answer.weights_port)
        welcomed_at = loop.time()
        try:
            self._welcomed = True
            if self._goes is not None:
                goes_at, reason = self._goes
                self._say(Notice(seconds=max(0.0, goes_at - welcomed_at), reason=reason))
            if self._capacity is not None:
                self._say(self._capacity)
            if self._offered is not None:
                self._say(self._offered)
            yield
        finally:
            self._welcomed = False
            self._bid(0.0)
            self._lost_at = loop.time()
            if self._lost_at - welcomed_at >= self._settled_seconds:
                self._attempt = 0
            if self._updates is not None:
                await self._updates.stop()
            if self._teachers is not None:
                await self._teachers.stop()

    def _emitted(self, message: ServerMessage) -> None:
        """Pass on a message from the engine's thread."""
        if isinstance(message, Capacity):  # each stream begins with what its Hello says
            self._capacity = msgspec.structs.replace(message, request_ids=b"")
        self._say(message)

    def _say(self, message: ServerMessage) -> None:
        """Send a message on the current stream; without a stream it is dropped."""
        if self._stream is not None:
            self._stream.say(message)

    async def _report_failure(
        self, serving: "asyncio.Future[str]", ends: tuple["asyncio.Future[None]", ...]
    ) -> None:
        """If this server fails, tell its manager why while it can be reached."""
        error = next((e for end in ends if end.done() and (e := end.exception())), None)
        if error is None or not self._welcomed:
            return
        reason = f"failed: {type(error).__name__}: {error}"
        line = " ".join(reason.split())[:FAILURE_LETTERS]
        self._failed = True
        self._say(Goodbye(reason=line, failed=True))
        await asyncio.wait({serving}, timeout=self._leave_seconds)


def _backoff(attempt: int) -> float:
    """Seconds to wait after this many attempts, the first being 0."""
    return backoff_seconds(attempt, first=FIRST_BACKOFF_SECONDS, longest=LONGEST_BACKOFF_SECONDS)
