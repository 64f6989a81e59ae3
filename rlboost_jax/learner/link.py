"""The trainer's stream to the manager: messages out, finished rollouts in.

An asyncio loop in a thread of its own holds the socket; the training loop stays plain
blocking code. A broken stream is dialled again; what the manager must know to go on
(`TrainerHello`, the newest `Publish`, the `BeginStep` in force) is said again, so that
neither a restarted manager nor a cut connection loses a step. Rollouts may then arrive
twice: the receiver of `receive()` drops those it has.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec

from rlboost_jax import messages

T = TypeVar("T")

DIAL_SECONDS = 0.2  # between two attempts to reach the manager
ANSWER_SECONDS = 30.0  # for a reply that the manager can give at once
END_SECONDS = 5.0  # for the manager to hang up after the end of the run


class ManagerLost(RuntimeError):
    """The manager does not answer any more."""


class EventLoopThread:
    """An asyncio loop in a daemon thread, for a program that is otherwise synchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="asyncio", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)  # type: ignore[return-value]

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run to the end and return the result; raises TimeoutError after `timeout` seconds."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)


class ManagerLink:
    """What the training loop knows of the manager."""

    def __init__(self, thread: EventLoopThread, *, locate: Callable[[], tuple[str, str]]):
        """Args:
        locate: returns (HOST:PORT, token) of a living manager, starting one if there is
            none; called from a worker thread each time the manager is dialled.
        """
        self._thread, self._locate = thread, locate
        self._inbox: queue.SimpleQueue[messages.ToTrainer | Exception] = queue.SimpleQueue()
        self._outbox: asyncio.Queue[messages.TrainerMessage] = asyncio.Queue()
        self._publish: messages.Publish | None = None
        self._begin: messages.BeginStep | None = None
        self._next_step = 0
        self._trained: messages.StepTrained | None = None  # not yet answered
        self.status: messages.FleetStatus | None = None  # the newest
        self.welcome: messages.TrainerWelcome | None = None
        self._closing = False
        self._task: asyncio.Future[None] | None = None

    def connect(self, hello: messages.TrainerHello) -> messages.TrainerWelcome:
        """Dial, and block until the manager has answered.

        Args:
            hello: first message of every stream; its step and window are brought up to date
                when the manager is dialled again.

        Raises:
            ManagerLost, or whatever `locate` raises.
        """
        self._task = self._thread.start(self._run(hello))
        message = self.receive(timeout=ANSWER_SECONDS)
        if not isinstance(message, messages.TrainerWelcome):
            raise ManagerLost(f"no welcome from the manager in {ANSWER_SECONDS:g} s: {message}")
        return message

    def publish(self, manifest: messages.Manifest) -> None:
        self._send(messages.Publish(manifest=manifest))

    def begin_step(self, begin: messages.BeginStep) -> None:
        self._send(begin)

    def committed(self, step: int) -> None:
        self._send(messages.StepCommitted(step=step))

    def trained(self, trained: messages.StepTrained) -> messages.StepReport:
        """Tell that the update was applied and wait for the manager's account of the step.

        Raises:
            ManagerLost: it did not answer within `ANSWER_SECONDS`.
        """
        self._send(trained)
        while True:
            message = self.receive(timeout=ANSWER_SECONDS)
            if message is None:
                raise ManagerLost(f"no report of step {trained.step} in {ANSWER_SECONDS} s")
            if isinstance(message, messages.StepReport) and message.step == trained.step:
                return message

    def receive(self, timeout: float | None = None) -> messages.ToTrainer | None:
        """The next message other than `FleetStatus`; None when `timeout` seconds passed."""
        try:
            message = self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(message, Exception):
            raise message
        return message

    def fail(self, error: Exception) -> None:
        """Let the training loop hear of something that ends the run."""
        self._inbox.put(error)

    def end(self, reason: str) -> None:
        """Send everyone home; returns when the manager has hung up, or after a while."""
        if self._task is not None and not self._task.done():
            self._closing = True
            self._send(messages.EndRun(reason=reason))
            with contextlib.suppress(TimeoutError):  # whoever started it sees to its end
                self._task.result(END_SECONDS)  # type: ignore[call-arg]

    def _send(self, message: messages.TrainerMessage) -> None:
        self._thread.loop.call_soon_threadsafe(self._queue, message)

    def _queue(self, message: messages.TrainerMessage) -> None:
        """Remember what must be said again, on the loop's own thread."""
        match message:
            case messages.Publish():
                self._publish = message
            case messages.BeginStep():
                self._begin, self._trained = message, None
            case messages.StepTrained():
                self._trained = message
        self._outbox.put_nowait(message)

    async def _run(self, hello: messages.TrainerHello) -> None:
        try:
            while True:
                address, token = await asyncio.to_thread(self._locate)
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    await self._talk(address, token, hello)  # the next says everything again
                if self._closing:
                    return
                await asyncio.sleep(DIAL_SECONDS)
        except Exception as error:  # reported to the training loop, whatever it is
            self._inbox.put(error)

    async def _talk(self, address: str, token: str, hello: messages.TrainerHello) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(
                f"http://{address}/trainer", max_msg_size=messages.MAX_FRAME_BYTES, heartbeat=10
            ) as stream,
        ):
            await self._say_again(stream, hello)
            sender = asyncio.create_task(self._drain(stream))
            try:
                async for frame in stream:
                    if frame.type is aiohttp.WSMsgType.BINARY:
                        self._take(messages.decode_to_trainer(frame.data))
            finally:
                sender.cancel()

    async def _say_again(
        self, stream: aiohttp.ClientWebSocketResponse, hello: messages.TrainerHello
    ) -> None:
        window = self.welcome.window if self.welcome else hello.window
        hello = msgspec.structs.replace(hello, step=max(hello.step, self._next_step), window=window)
        again = [hello, self._publish, self._begin, self._trained]
        # What still waits to be sent for the first time is among these or, being a
        # commit or the end, follows in its own turn.
        later: list[messages.TrainerMessage] = []
        while not self._outbox.empty():
            message = self._outbox.get_nowait()
            if isinstance(message, messages.StepCommitted | messages.EndRun):
                later.append(message)
        for message in (m for m in [*again, *later] if m is not None):
            await stream.send_bytes(messages.encode(message))

    async def _drain(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await self._outbox.get()
            await stream.send_bytes(messages.encode(message))

    def _take(self, message: messages.ToTrainer) -> None:
        match message:
            case messages.FleetStatus():
                self.status = message
            case messages.TrainerWelcome():
                first, self.welcome = self.welcome is None, message
                if first:
                    self._inbox.put(message)
            case messages.StepReport():
                self._begin = self._trained = None  # nothing of that step is to be said again
                self._next_step = message.step + 1
                self._inbox.put(message)
            case _:
                self._inbox.put(message)
