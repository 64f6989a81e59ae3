"""A rollout server's stream to the manager, dialled from here.

Invariants: a fresh stream begins with nothing held and sequence 0; the lease is renewed
while the engine computes or compiles; of several announced versions only the newest is
pulled; however the stream ends, this side either dials again or leaves, never both. The
trainer's own engine leaves with its trainer only: managers may go and come meanwhile.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from rlboost_jax import messages
from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.credentials import COPY_AGAIN, Endpoint, explain
from rlboost_jax.messages import (
    MAX_FRAME_BYTES,
    MAX_REASON,
    MAX_SPANS,
    Announce,
    Generate,
    Goodbye,
    Hello,
    Hint,
    Leave,
    Notice,
    Ready,
    Release,
    Renew,
    Renewed,
    ServerMessage,
    Spans,
    Welcome,
)
from rlboost_jax.observe.clocks import Clock
from rlboost_jax.rollout.weight_updates import PullerLike, WeightUpdates
from rlboost_jax.rollout.worker import Worker

ANSWER_SECONDS = 5.0  # from Hello to Welcome
PING_SECONDS = 10.0  # a manager that does not answer a ping for half of it is lost
LEAVE_SECONDS = 0.7  # for the last tokens and the goodbye
SICK_LETTERS = 300  # of what a sick engine says of itself
CLOSE_SECONDS = 0.2  # for the other side to confirm the end of a stream
FIRST_BACKOFF_SECONDS = 0.1  # doubles with each attempt
LONGEST_BACKOFF_SECONDS = 2.0
SETTLED_SECONDS = 5.0  # a stream that lived as long was a good one: the back-off begins anew


class Refused(RuntimeError):
    """The manager does not want this server: a wrong token, or a Leave in place of Welcome."""


class InstanceClient:
    """One instance in the eyes of a manager.

    Args:
        locate: finds the manager; called from a worker thread each time it is dialled. An
            exception of it ends `run`.
        hello: first message of every stream. A `reserved` instance belongs to a trainer: it
            looks for a manager as long as it takes, and none can send it home.
        worker: not yet started. Its spans are sent to the manager; of a `reserved` instance the
            trainer has its own use for them.
        puller: None for the trainer's own engine, which is given its parameters by `offer`.
        orphan_seconds: how long to look for a manager; a `Welcome` replaces it.
        compiled: how many programs were compiled since the engine was warm.
        clock: the manager's; what its answers say of it is put in here.
    """

    def __init__(
        self,
        locate: Callable[[], Endpoint],
        hello: Hello,
        worker: Worker,
        puller: PullerLike | None,
        *,
        orphan_seconds: float = 10.0,
        compiled: Callable[[], int] = lambda: 0,
        clock: Clock | None = None,
    ):
        self._locate, self._hello, self._worker, self._puller = locate, hello, worker, puller
        self._orphan_seconds = math.inf if hello.reserved else orphan_seconds
        self._compiled = compiled
        self._spans = worker.spans
        self._clock = clock or Clock()
        self._outbox: asyncio.Queue[ServerMessage] = asyncio.Queue()
        self._updates: WeightUpdates | None = None
        self._offered: Ready | None = None  # what to say of the parameters offered
        self._goes: tuple[float, str] | None = None  # when the machine does, and who says so
        self._stamp = 0.0  # the newest of the manager's
        self._sick = False
        self._leaving: asyncio.Future[str] | None = None  # its result is the reason
        self._welcomed = asyncio.Event()
        self._broken: asyncio.Future[None]  # its exception is a mistake of this side
        self._lost_at = 0.0  # when there was last a manager, by the loop's clock
        self._attempt = 0  # dials since a stream was good
        self._trouble = ""  # why the last one failed, if that can be changed

    @property
    def welcomed(self) -> asyncio.Event:
        """Set while a manager knows this instance."""
        return self._welcomed

    async def run(self) -> str:
        """Serve until told to leave or orphaned; returns the reason.

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
                say=lambda message: self._outbox.put_nowait(message),
                fail=self._broken.set_exception,
                spans=self._spans,
            )
        if self._leaving is None:
            self._leaving = loop.create_future()

        def emit(message: ServerMessage) -> None:
            # The outbox of that moment: a message of an earlier stream never meets a later one.
            loop.call_soon_threadsafe(lambda: self._outbox.put_nowait(message))

        self._worker.start(emit)
        failure = asyncio.wrap_future(self._worker.failure)
        serving = asyncio.ensure_future(self._serve_all())
        ends: set[asyncio.Future[Any]] = {serving, failure, self._broken}
        try:
            await asyncio.wait({*ends, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not any(end.done() for end in ends):  # leaving; a manager may be out of reach
                patience = LEAVE_SECONDS + CLOSE_SECONDS
                await asyncio.wait(ends, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._report_sick(serving, (failure, self._broken))
            for end in ends:
                if end.done():
                    end.result()
            return serving.result() if serving.done() else self._leaving.result()
        finally:
            failure.cancel()
            await _cancel(serving)

    def leave(self, reason: str) -> None:
        """Flush, say goodbye and end `run`. To be called in its event loop; once is enough."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_future()
        if not self._leaving.done():
            self._leaving.set_result(reason)

    def notice(self, seconds: float, reason: str) -> None:
        """The machine goes in so many seconds: tell the manager, and leave by then at the latest.

        To be called in the loop of `run`. Of several notices the earliest counts.
        """
        loop = asyncio.get_running_loop()
        goes_at = loop.time() + seconds
        if self._goes is not None and self._goes[0] <= goes_at:
            return
        self._goes = goes_at, reason
        loop.call_at(goes_at, self.leave, reason)
        if self._welcomed.is_set():
            self._outbox.put_nowait(Notice(seconds=seconds, reason=reason))

    def hint(self, reason: str) -> None:
        """The machine may go some time, or pause; of interest to whoever reads the events."""
        if self._welcomed.is_set():
            self._outbox.put_nowait(Hint(reason=reason))

    async def offer(self, params: Any, version: int, params_digest: str) -> None:
        """Load parameters that are here already and say so; for an instance without puller."""
        await asyncio.wrap_future(self._worker.load(params, version, params_digest))
        self._offered = Ready(version=version, params_digest=params_digest)
        if self._welcomed.is_set():
            self._outbox.put_nowait(self._offered)

    async def _serve_all(self) -> str:
        """One stream after the other."""
        assert self._leaving is not None
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
        self._lost_at, self._attempt = loop.time(), 0
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._leaving.done():
                manager = await asyncio.to_thread(self._locate)
                self._trouble = ""
                try:
                    await self._serve_one(session, manager)
                except aiohttp.WSServerHandshakeError as error:
                    if error.status in (401, 403):
                        raise Refused(f"wrong token; {COPY_AGAIN}") from None
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    # Not there: as if the stream had ended. What listens at its address may be
                    # another program for a while, so not even a wrong certificate ends the search.
                    self._trouble = explain(error, manager.credentials)
                if self._leaving.done():
                    break
                if self._sick:
                    return "sick"
                if loop.time() - self._lost_at >= self._orphan_seconds:
                    trouble = f": {self._trouble}" if self._trouble else ""
                    return f"no manager for {self._orphan_seconds:g} s{trouble}"
                # A whole fleet comes back to one manager: not at one moment.
                pause = _backoff(self._attempt) * random.uniform(0.5, 1.0)
                await asyncio.wait({self._leaving}, timeout=pause)
                self._attempt += 1
        return self._leaving.result()

    async def _serve_one(self, session: aiohttp.ClientSession, manager: Endpoint) -> None:
        """One stream from Hello to its end.

        Raises:
            Refused: by the manager.
            aiohttp.ClientError, OSError, TimeoutError: if it does not come about.
        """
        await asyncio.wrap_future(self._worker.reset())
        self._outbox = asyncio.Queue()
        async with session.ws_connect(
            manager.url("/instance"),
            headers=manager.headers,
            ssl=manager.tls,
            max_msg_size=MAX_FRAME_BYTES,
            heartbeat=PING_SECONDS,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        ) as stream:
            loop = asyncio.get_running_loop()
            self._clock.restart()
            self._clock.asked(loop.time())
            await stream.send_bytes(messages.encode(self._hello))
            answer = await _receive(stream, ANSWER_SECONDS)
            if isinstance(answer, Leave):
                raise Refused(answer.reason)
            if not isinstance(answer, Welcome):
                return
            if not self._hello.reserved:
                self._orphan_seconds = answer.orphan_seconds
            welcomed_at = loop.time()
            self._clock.answered(answer.stamp, welcomed_at)
            try:
                self._welcomed.set()
                self._stamp = answer.stamp
                if self._goes is not None:
                    goes_at, reason = self._goes
                    seconds = max(0.0, goes_at - welcomed_at)
                    self._outbox.put_nowait(Notice(seconds=seconds, reason=reason))
                if self._offered is not None:
                    self._outbox.put_nowait(self._offered)
                await self._talk(stream, answer.renew_seconds)
            finally:
                self._welcomed.clear()
                self._lost_at = loop.time()
                if self._lost_at - welcomed_at >= SETTLED_SECONDS:
                    self._attempt = 0
                if self._updates is not None:
                    await self._updates.stop()

    async def _talk(self, stream: aiohttp.ClientWebSocketResponse, renew_seconds: float) -> None:
        """Until the stream ends, or this side has said goodbye on it."""
        assert self._leaving is not None
        sending = asyncio.ensure_future(self._send(stream))
        others: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(part) for part in (self._obey(stream), self._renew(renew_seconds))
        ]
        try:
            await asyncio.wait(
                {sending, *others, self._leaving}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._leaving.done() and not sending.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_SECONDS):
                        await self._say_goodbye(stream, sending, self._leaving.result())
            for part in (sending, *others):
                if part.done():
                    part.result()
        finally:
            for part in (sending, *others):
                await _cancel(part)

    async def _say_goodbye(
        self,
        stream: aiohttp.ClientWebSocketResponse,
        sending: asyncio.Future[None],
        reason: str,
    ) -> None:
        """What the current dispatch yields, then Goodbye. Cut short, nothing was promised."""
        await asyncio.wrap_future(self._worker.stop())
        self._say_spans()
        self._outbox.put_nowait(Goodbye(reason=reason[:MAX_REASON]))
        await asyncio.wait({sending})
        await stream.close()

    async def _report_sick(
        self, serving: "asyncio.Future[str]", ends: tuple["asyncio.Future[None]", ...]
    ) -> None:
        """Tell a manager that can be reached why this server goes, if that is what it does."""
        error = next((e for end in ends if end.done() and (e := end.exception())), None)
        if error is None or not self._welcomed.is_set():
            return
        reason = f"sick: {type(error).__name__}: {error}"
        line = " ".join(reason.split())[:SICK_LETTERS]
        self._sick = True
        self._outbox.put_nowait(Goodbye(reason=line, sick=True))
        await asyncio.wait({serving}, timeout=LEAVE_SECONDS)

    async def _send(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        """Everything in the outbox, up to and including a Goodbye."""
        while True:
            message = await self._outbox.get()
            if isinstance(message, Renew):
                self._clock.asked(asyncio.get_running_loop().time())
            await stream.send_bytes(messages.encode(message))
            if isinstance(message, Goodbye):
                return

    async def _renew(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.sleep(0)  # after a stall: hear first what came meanwhile
            renew = Renew(programs_compiled=self._compiled(), echo=self._stamp)
            self._outbox.put_nowait(renew)
            self._say_spans()

    def _say_spans(self) -> None:
        """What was recorded since the last time, on the manager's clock."""
        if self._hello.reserved:
            return
        spans, dropped = self._spans.take()
        for first in range(0, len(spans), MAX_SPANS):
            self._outbox.put_nowait(
                Spans(
                    spans=tuple(self._clock.moved(spans[first : first + MAX_SPANS])),
                    clock_error=self._clock.error,
                    dropped=dropped if first == 0 else 0,
                )
            )

    async def _obey(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        """Everything the manager asks, until it hangs up or says Leave."""
        while True:
            match await _receive(stream):
                case Generate(requests=requests, params_digest=params_digest):
                    if requests and not self._hello.reserved:  # a trainer knows its step
                        self._spans.at(requests[0].step)
                    self._worker.submit(requests, params_digest)
                case Renewed(stamp=stamp):
                    self._stamp = stamp
                    self._clock.answered(stamp, asyncio.get_running_loop().time())
                case Release(request_ids=request_ids):
                    self._worker.release(messages.unpack_ids(request_ids).tolist())
                case Announce(manifest=manifest) if self._updates is not None:
                    self._updates.announce(manifest)
                case Leave(reason=reason) if not self._hello.reserved:
                    self.leave(reason)
                    await asyncio.Event().wait()  # `_talk` sees to it and ends this
                case None:
                    return


def _backoff(attempt: int) -> float:
    """Seconds to wait after that many attempts, the first being 0."""
    return backoff_seconds(attempt, first=FIRST_BACKOFF_SECONDS, longest=LONGEST_BACKOFF_SECONDS)


async def _receive(
    stream: aiohttp.ClientWebSocketResponse, timeout: float | None = None
) -> messages.ToServer | None:
    """The next message; None at the end of the stream or at a frame that is not one.

    A manager that sends nonsense is not one to talk to: the stream ends and is dialled again.
    """
    frame = await stream.receive(timeout)
    if frame.type is not aiohttp.WSMsgType.BINARY:
        return None
    try:
        return messages.decode_to_server(frame.data)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


async def _cancel(task: "asyncio.Future[Any] | None") -> None:
    """Cancel and wait until it is over, whatever it ends with."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: it belongs to work that is given up
