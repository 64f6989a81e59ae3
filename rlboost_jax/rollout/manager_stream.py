"""One stream of a rollout server to its manager, from Hello to its end.

Invariants: it begins with nothing held and sequence 0; the lease is renewed while the engine
computes or compiles; a message of an earlier stream never meets a later one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import msgspec

from rlboost_jax import messages
from rlboost_jax.messages import (
    MAX_FRAME_BYTES,
    MAX_LINES,
    MAX_REASON,
    MAX_SPANS,
    Announce,
    Bid,
    FetchFrom,
    Generate,
    Goodbye,
    Hello,
    Leave,
    Prefetch,
    Release,
    Renew,
    Renewed,
    Said,
    ScoreTokens,
    ServerMessage,
    Spans,
    Teach,
    Welcome,
)
from rlboost_jax.observe.clocks import RemoteClock
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.log_lines import LogLines
from rlboost_jax.rollout.renewal_timing import RenewalTiming
from rlboost_jax.rollout.teacher_updates import TeacherUpdates
from rlboost_jax.rollout.weight_updates import WeightUpdates
from rlboost_jax.trust.credentials import Endpoint

ANSWER_SECONDS = 5.0  # from Hello to Welcome
SILENCE_SECONDS = 15.0  # of a manager that counts as lost then, where no lease is longer
LOOK_SECONDS = 1.0  # between two looks at how long it has been silent
LEAVE_SECONDS = 0.7  # for the last tokens and the goodbye
CLOSE_SECONDS = 0.2  # for the other side to confirm the end of a stream


class ServerRejected(RuntimeError):
    """The manager rejects this server: a wrong token, or a Leave in place of Welcome."""


class ManagerStream:
    """A server's connection to its manager.

    Args:
        compiled: how many programs were compiled since the engine was warm.
        pulled: bytes of weights that have come so far.
        clock: the manager's; what its answers say of it is put in here.
        updates: pulls announced versions; None for the trainer's own engine.
        teachers: pulls teachers and has them score; None likewise.
        leave: called with the reason when the manager sends this server home.
        leaving: its result is the reason to say goodbye.
        leave_seconds: for the last tokens and the goodbye.
        log: what this server prints, for a manager that hears it; None: nothing is sent.
        sources: hears which servers have pieces of a version; None: nobody does.
        bid: called with what the device is worth to the run, whenever that changes.
    """

    def __init__(
        self,
        hello: Hello,
        worker: EngineWorker,
        *,
        compiled: Callable[[], int],
        pulled: Callable[[], int],
        clock: RemoteClock,
        updates: WeightUpdates | None,
        teachers: TeacherUpdates | None,
        leave: Callable[[str], None],
        leaving: asyncio.Future[str],
        leave_seconds: float = LEAVE_SECONDS,
        log: LogLines | None = None,
        sources: Callable[[FetchFrom], None] | None = None,
        bid: Callable[[float], None] = lambda price: None,
    ) -> None:
        self._log, self._sources, self._bid = log, sources, bid
        self._leave_seconds = leave_seconds
        self._hello, self._worker, self._updates = hello, worker, updates
        self._teachers = teachers
        self._compiled, self._pulled = compiled, pulled
        self._clock, self._spans = clock, worker.spans
        self._leave, self._leaving = leave, leaving
        self._outbox: asyncio.Queue[ServerMessage] = asyncio.Queue()
        self._stamp = 0.0  # the newest of the manager's
        self._renewals = RenewalTiming()
        self._patience = SILENCE_SECONDS
        self._heard_at = 0.0

    def say(self, message: ServerMessage) -> None:
        """Queue a message, sent once there is a manager; the caller does not wait."""
        self._outbox.put_nowait(message)

    async def serve(
        self,
        session: aiohttp.ClientSession,
        manager: Endpoint,
        known: Callable[[Welcome], AbstractAsyncContextManager[None]],
    ) -> None:
        """Dial, and serve until the stream ends or this side has said goodbye on it.

        Args:
            known: entered when the manager has taken this server in, left as the stream ends.

        Raises:
            Refused: by the manager.
            aiohttp.ClientError, OSError, TimeoutError: if it does not come about.
        """
        async with session.ws_connect(
            manager.url("/instance"),
            headers=manager.headers,
            ssl=manager.tls,
            max_msg_size=MAX_FRAME_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        ) as socket:
            loop = asyncio.get_running_loop()
            self._clock.restart()
            self._clock.asked(loop.time())
            await socket.send_bytes(messages.encode(self._hello))
            answer = await _receive(socket, ANSWER_SECONDS)
            if isinstance(answer, Leave):
                raise ServerRejected(answer.reason)
            if not isinstance(answer, Welcome):
                return
            self._clock.answered(answer.stamp, loop.time())
            self._stamp, self._heard_at = answer.stamp, loop.time()
            if not answer.hears_logs:
                self._log = None
            async with known(answer):
                await self._talk(socket, answer.renew_seconds)

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse, renew_seconds: float) -> None:
        """Exchange messages until the stream ends, or this side has said goodbye on it."""
        self._say_lines()
        sending = asyncio.ensure_future(self._send(socket))
        others: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(part)
            for part in (self._obey(socket), self._renew(renew_seconds), self._watch())
        ]
        try:
            await asyncio.wait(
                {sending, *others, self._leaving}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._leaving.done() and not sending.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._leave_seconds):
                        await self._say_goodbye(socket, sending, self._leaving.result())
            for part in (sending, *others):
                if part.done():
                    part.result()
        finally:
            for part in (sending, *others):
                await cancel(part)

    async def _say_goodbye(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        sending: asyncio.Future[None],
        reason: str,
    ) -> None:
        """Send what the current dispatch yields, then Goodbye.

        It may be cut short: nothing is promised.
        """
        await asyncio.wrap_future(self._worker.stop())
        self._say_spans()
        self._say_lines()
        self.say(Goodbye(reason=reason[:MAX_REASON]))
        await asyncio.wait({sending})
        await socket.close()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send everything in the outbox, up to and including a Goodbye."""
        while True:
            message = await self._outbox.get()
            if isinstance(message, Renew):
                self._clock.asked(asyncio.get_running_loop().time())
            await socket.send_bytes(messages.encode(message))
            if isinstance(message, Goodbye):
                return

    async def _renew(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._renewals.next_one(seconds)
            await asyncio.sleep(0)  # after a stall: hear first what came meanwhile
            renew = Renew(
                programs_compiled=self._compiled(),
                echo=self._stamp,
                round_trip=self._renewals.take_longest(),
                pulled_bytes=self._pulled(),
                discarded=self._worker.unsaid.discarded(),
                drafts=self._worker.unsaid.drafts(),
            )
            self._renewals.asked(loop.time())
            self.say(renew)
            self._say_spans()
            self._say_lines()

    async def _watch(self) -> None:
        """Wait until the manager has been silent for longer than it tolerates of a server."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while looked < self._heard_at + self._patience:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.sleep(0)  # after a stall: hear first what came meanwhile
            stalled = max(0.0, loop.time() - looked - 2 * LOOK_SECONDS)  # of this process
            self._heard_at, looked = self._heard_at + stalled, loop.time()

    def _say_spans(self) -> None:
        """Send the spans recorded since the last time, on the manager's clock."""
        if self._hello.reserved:
            return
        spans, dropped = self._spans.take()
        for first in range(0, len(spans), MAX_SPANS):
            moved, error = self._clock.moved(spans[first : first + MAX_SPANS])
            self.say(Spans(spans=moved, clock_error=error, dropped=dropped))
            dropped = 0  # it is said

    def _say_lines(self) -> None:
        """Send the lines printed since the last time, in parts if there are many."""
        if self._log is None:
            return
        lines, dropped = self._log.take(MAX_LINES)
        if lines or dropped:
            self.say(Said(lines=lines, dropped=dropped))

    async def _obey(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Carry out the manager's messages, until it hangs up or sends Leave."""
        loop = asyncio.get_running_loop()
        while True:
            message = await _receive(socket)
            self._heard_at = loop.time()
            match message:
                case Generate(requests=requests, params_digest=params_digest) as work:
                    if requests and not self._hello.reserved:  # a trainer knows its step
                        self._spans.at(requests[0].work.batch)
                    if work.texts:
                        self._worker.offer(work.offered)
                    self._worker.submit(work.whole, params_digest)
                case Renewed(stamp=stamp, lease_seconds=lease, busy=busy):
                    self._stamp, self._patience = stamp, max(SILENCE_SECONDS, lease)
                    self._clock.answered(stamp, loop.time())
                    self._renewals.answered(loop.time(), busy)
                case Release(request_ids=request_ids):
                    self._worker.release(messages.unpack_ids(request_ids).tolist())
                case Announce(manifest=manifest) if self._updates is not None:
                    if not manifest.list_sha256:
                        raise ServerRejected(
                            "the manager is of a release before this server's; install the "
                            "manager's release here"
                        )
                    self._updates.announce(manifest)
                case FetchFrom() if self._sources is not None:
                    self._sources(message)
                case Prefetch(manifest=manifest) if self._updates is not None:
                    self._updates.prefetch(manifest)
                case Teach(manifests=manifests) if self._teachers is not None:
                    self._teachers.teach(manifests)
                case ScoreTokens() if self._teachers is not None:
                    self._teachers.score(message)
                case Bid(price=price):
                    self._bid(price)
                case Leave(reason=reason) if not self._hello.reserved:
                    self._leave(reason)
                    await asyncio.Event().wait()  # `_talk` sees to it and ends this
                case None:
                    return


async def _receive(
    socket: aiohttp.ClientWebSocketResponse, timeout: float | None = None
) -> messages.ToServer | None:
    """Wait for the next message; None at the end of the stream or at an invalid frame.

    After an invalid frame the stream ends and is dialled again.
    """
    frame = await socket.receive(timeout)
    if frame.type is not aiohttp.WSMsgType.BINARY:
        return None
    try:
        return messages.decode_to_server(frame.data)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


async def cancel(task: "asyncio.Future[Any] | None") -> None:
    """Cancel a task and wait until it is over, whatever it ends with."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: it belongs to work that is abandoned
