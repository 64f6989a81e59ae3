"""The trainer's stream to the manager: messages out, finished rollouts in.

An asyncio loop in a thread of its own holds the socket; the training loop stays plain blocking
code. A broken stream is dialled again; what the manager must know to go on (`TrainerHello`, the
newest `Publish` or, with a lag, those of all versions that are still needed, the `BeginBatch` of
each open batch, what extended it, and what is to be scored for teachers) is said again, so that
neither a restarted manager nor a cut connection loses a batch. Rollouts may then arrive twice: the
receiver of `receive()` drops those it has. What the manager refuses is not said again: it ends the
run with the manager's reason.
"""

import asyncio
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

import aiohttp
import msgspec

from rlboost_jax import messages
from rlboost_jax.learner.fleet.score_requests import ScoreRequests
from rlboost_jax.learner.fleet.unsettled import Unsettled
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.learner.tolerated_gaps import message_of
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.distillation_config import DistillationConfig
from rlboost_jax.trust.credentials import Endpoint, explain

DIAL_SECONDS = 0.2  # between two attempts to reach the manager
ANSWER_SECONDS = 30.0  # for a reply that the manager can give at once
DISK_TIMES = 20  # as long for one that waits for its journal: a disk may not answer for minutes
# A signal that comes just before a wait begins, or to another thread, is heard of when it ends.
LOOK_SECONDS = 1.0
END_SECONDS = 5.0  # for the manager to hang up after the end of the run


class ManagerLost(RuntimeError):
    """The manager does not answer any more."""


class OtherRelease(RuntimeError):
    """The manager speaks another version of the protocol. It leaves as this trainer ends."""


class ManagerRefused(Mistake, RuntimeError):
    """The manager refused a request as impossible; the message gives its reason."""


class StepTooLarge(Mistake, ValueError):
    """The prompts of a batch do not fit in a message to the manager."""


class ManagerLink:
    """Connection of the training loop to the manager."""

    def __init__(
        self,
        thread: EventLoopThread,
        *,
        locate: Callable[[], Endpoint],
        answer_seconds: float = ANSWER_SECONDS,
        most_bytes: int = messages.MAX_FRAME_BYTES,
        versions: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Set up without dialling, which `connect` does.

        Args:
            locate: finds a living manager, starting one if there is none; called from a
                worker thread each time the manager is dialled.
            answer_seconds: for a reply that the manager can give at once.
            most_bytes: of a message.
            versions: how many of the newest are said again.
            clock: seconds.
        """
        self._thread, self._locate = thread, locate
        self._answer_seconds, self._most_bytes = answer_seconds, most_bytes
        self._clock = clock
        # Python 3.11 never ends a SimpleQueue's `get` whose time is over before it has looked.
        self._inbox: queue.Queue[messages.ToTrainer | Exception | None] = queue.Queue()
        self._outbox: asyncio.Queue[messages.TrainerMessage] = asyncio.Queue()
        self._unsettled = Unsettled(versions)
        self._aside: deque[messages.ToTrainer] = deque()  # came while an account was waited for
        self.status: messages.FleetStatus | None = None  # the newest
        self.welcome: messages.TrainerWelcome | None = None
        # Called in the link's own thread with what parked responses ask, and the stream of that.
        self.parked: Callable[[messages.Parked, int], None] = lambda parked, stream: None
        self._stream = 0  # how many were begun
        self._locating = True
        self._trouble = "it was not reached"  # what stands between us and an answer
        self._task: Future[bool] | None = None

    def connect(self, hello: messages.TrainerHello) -> messages.TrainerWelcome:
        """Dial, and block until the manager has answered.

        Args:
            hello: first message of every stream; its window is brought up to date
                when the manager is dialled again.

        Raises:
            ManagerLost, ManagerRefused, or whatever `locate` raises.
        """
        self._task = self._thread.start(self._run(hello))
        message = self._next(self._answer_seconds)
        if not isinstance(message, messages.TrainerWelcome):
            raise ManagerLost(
                f"no welcome from the manager in {self._answer_seconds:g} s: {self._trouble}"
            )
        return message

    def publish(self, manifest: messages.Manifest) -> None:
        self._send(messages.Publish(manifest=manifest))

    def teach(self, manifests: Sequence[messages.Manifest]) -> None:
        """Have servers hold these teachers."""
        self._send(messages.Teach(manifests=tuple(manifests)))

    def asks(
        self, distillation: DistillationConfig, teachers: Sequence[str], *, temperature: float
    ) -> ScoreRequests:
        """What servers are asked about teachers, in the steps to come; see `ScoreRequests`."""
        self._unsettled.scores = scores = ScoreRequests(
            distillation, teachers, self._send, temperature=temperature
        )
        return scores

    def begin_batch(self, begin: messages.BeginBatch) -> None:
        """Request a batch. Raises StepTooLarge."""
        self._check_size(begin)
        self._send(begin)

    def extend_batch(self, extend: messages.ExtendBatch) -> None:
        """Request more prompts of an open batch. Raises StepTooLarge."""
        self._check_size(extend)
        self._send(extend)

    def committed(self, batch: Batch) -> None:
        self._send(messages.BatchCommitted(batch=batch))

    def doubt(self, batch: Batch, doubts: Sequence[DoubtedResponse]) -> None:
        """Report doubts, so that other servers sample again; if a report is lost, the manager
        delivers the response once more, and it is reported again.
        """
        self._send(message_of(batch, doubts))

    def answer(self, answer: messages.Answer, stream: int) -> None:
        """Send an environment's answer on the stream that asked, or nowhere: on the next one the
        manager asks again, perhaps about other tokens, if it lost a part of its journal.
        """
        self._thread.loop.call_soon_threadsafe(self._answer, answer, stream)

    def trained(self, trained: messages.BatchTrained) -> messages.BatchReport:
        """Report that the update was applied, and wait for the manager's account of the batch.

        What else arrives meanwhile is of the batches that are open still: `receive` has it next.

        Raises:
            ManagerLost: it did not answer within `DISK_TIMES` `answer_seconds`.
            ManagerRefused: it knows nothing of that batch.
        """
        self._send(trained)
        seconds, others = DISK_TIMES * self._answer_seconds, list[messages.ToTrainer]()
        while True:
            message = self._next(seconds)
            if message is None:
                waited = f"batch {trained.batch} in {seconds:g} s"
                raise ManagerLost(f"no report of {waited}: {self._trouble}")
            if isinstance(message, messages.BatchReport) and message.batch == trained.batch:
                self._aside.extend(others)
                return message
            others.append(message)

    def receive(self, timeout: float | None = None) -> messages.ToTrainer | None:
        """Wait for the next message but `FleetStatus`; None after `timeout` seconds, or `wake`.

        Raises:
            ManagerRefused, or whatever else ended the link or was handed to `fail`.
        """
        if self._aside:
            return self._aside.popleft()
        while True:
            try:
                message = self._inbox.get(timeout=LOOK_SECONDS if timeout is None else timeout)
                break
            except queue.Empty:
                if timeout is not None:
                    return None
        if isinstance(message, Exception):
            raise message
        return message

    def _next(self, seconds: float) -> messages.ToTrainer | None:
        """Receive like `receive`, even if `wake` is called meanwhile.

        A manager is given that time once it is found: `locate` has a patience of its own, with one
        that reads a long journal, too.
        """
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            message = self.receive(timeout=min(left, LOOK_SECONDS))
            if message is not None:
                return message
            if self._locating:
                end = self._clock() + seconds
        return None

    def wake(self) -> None:
        """Let the current `receive`, or the next one, return None; callable in any thread."""
        self._inbox.put(None)

    def fail(self, error: Exception) -> None:
        """Raise an error that ends the run in the training loop."""
        self._inbox.put(error)

    def end(self, reason: str, *, over: bool) -> bool:
        """Have manager and servers leave, by the next manager if this one is killed; whether one
        closed the stream for that within `END_SECONDS`.

        Args:
            over: the run is complete, and what the manager keeps is of no more use.
        """
        if self._task is None:
            return False
        self._send(messages.EndRun(reason=reason, over=over))
        left = (
            END_SECONDS  # besides what it takes to start another, which has a patience of its own
        )
        while not self._task.done() and left > 0:
            began, locating = self._clock(), self._locating
            wait([self._task], timeout=min(left, DIAL_SECONDS))
            left -= 0.0 if locating else self._clock() - began
        return self._task.done() and self._task.result()

    def _send(self, message: messages.TrainerMessage) -> None:
        self._thread.loop.call_soon_threadsafe(self._queue, message)

    def _answer(self, answer: messages.Answer, stream: int) -> None:
        if stream == self._stream:
            self._outbox.put_nowait(answer)

    def _queue(self, message: messages.TrainerMessage) -> None:
        """Remember what has to be sent again after reconnecting, in the loop's own thread."""
        self._unsettled.remember(message)
        self._outbox.put_nowait(message)

    async def _run(self, hello: messages.TrainerHello) -> bool:
        """Keep streams open one by one; whether the manager ended the last as asked."""
        try:
            while True:
                self._locating, hung_up = True, False
                manager = await asyncio.to_thread(self._locate)
                self._locating = False
                try:
                    hung_up = await self._talk(manager, hello)
                except (aiohttp.ClientError, OSError) as error:  # the next says everything again
                    explanation = explain(error)
                    self._trouble = explanation or str(error) or type(error).__name__
                if hung_up and self._unsettled.end is not None:
                    return True
                await asyncio.sleep(DIAL_SECONDS)
        except Exception as error:  # reported to the training loop, whatever it is
            self._inbox.put(error)
            return False

    async def _talk(self, manager: Endpoint, hello: messages.TrainerHello) -> bool:
        """Serve one stream; whether the manager ended it rather than lost it."""
        self._stream += 1
        async with (
            aiohttp.ClientSession(headers=manager.headers) as session,
            session.ws_connect(
                manager.url("/trainer"),
                ssl=manager.tls,
                max_msg_size=messages.MAX_FRAME_BYTES,
                heartbeat=10,
            ) as stream,
        ):
            await self._say_again(stream, hello)
            sender = asyncio.create_task(self._drain(stream))
            try:
                while (frame := await stream.receive()).type is aiohttp.WSMsgType.BINARY:
                    self._take(_decoded(frame.data))
                self._trouble = f"it hung up: {frame.extra or frame.data or frame.type.name}"
                return frame.type is aiohttp.WSMsgType.CLOSE
            finally:
                sender.cancel()

    async def _say_again(
        self, stream: aiohttp.ClientWebSocketResponse, hello: messages.TrainerHello
    ) -> None:
        window = self.welcome.window if self.welcome else hello.window
        hello = msgspec.structs.replace(hello, window=window)
        again = [hello, *self._unsettled.again()]
        # What still waits to be sent for the first time is among these or, being a commit, follows
        # in its own turn.
        waiting = [self._outbox.get_nowait() for _ in range(self._outbox.qsize())]
        later = [message for message in waiting if isinstance(message, messages.BatchCommitted)]
        for message in (m for m in [*again, *later, self._unsettled.end] if m is not None):
            await stream.send_bytes(messages.encode(message))

    async def _drain(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await self._outbox.get()
            await stream.send_bytes(messages.encode(message))

    def _take(self, message: messages.ToTrainer) -> None:
        match message:
            case messages.RequestRefused(reason=reason):
                raise ManagerRefused(f"the manager refused: {reason}")
            case messages.FleetStatus():
                self.status = message
            case messages.Parked():
                self.parked(message, self._stream)
            case messages.TokenScores() if (scores := self._unsettled.scores) is not None:
                scores.take(message)
            case messages.TrainerWelcome():
                if self.welcome is None:
                    self._inbox.put(message)
                self.welcome, self._trouble = message, "no answer"
            case messages.BatchReport():
                self._unsettled.reported(message.batch)
                self._inbox.put(message)
            case _:
                self._inbox.put(message)

    def _check_size(self, message: messages.BeginBatch | messages.ExtendBatch) -> None:
        size = len(messages.encode(message))
        if size > self._most_bytes:
            raise StepTooLarge(
                f"the {len(message.prompts)} prompts of batch {message.batch} take {size:,} bytes "
                f"of the {self._most_bytes:,} in a message; lower learner.prompts_per_step or "
                "engine.max_prompt_tokens"
            )


def _decoded(frame: bytes) -> messages.ToTrainer:
    """Decode a frame. Raises OtherRelease."""
    try:
        message = messages.decode_to_trainer(frame)
        if isinstance(message, messages.TrainerWelcome) and not message.announces_lists:
            raise msgspec.ValidationError("it announces no lists of pieces")
    except msgspec.ValidationError as error:
        raise OtherRelease(
            f"the manager is of another release ({error}); it is asked to leave, and the same "
            "command goes on from its journal with one of this release"
        ) from None
    return message
