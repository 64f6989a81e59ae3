"""The engine's thread: commands in between two dispatches, messages out in order.

A command is carried out when nothing is in flight: it waits for the running dispatch and for
the one that was launched to follow it, never for a third.

Invariants: a dispatch is announced (`in_flight`) before its tokens exist; tokens of a
request are sent before the `Released` that names it; each message is emitted once, in the
order in which things happened. An exception of the engine ends the thread and is the
result of `failure`. Every question is answered, after the end with an exception.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from rlboost_jax.messages import (
    Capacity,
    GenerateRequest,
    Released,
    TokenBatch,
    TokenScores,
    pack_ids,
)
from rlboost_jax.observe.span_recorder import ENGINE_LANE, Recorder
from rlboost_jax.rollout.outgoing import DispatchLike, nothing_sampled, token_batches
from rlboost_jax.rollout.sharing.turns import AGAIN_SECONDS, Turns
from rlboost_jax.rollout.unsaid_counts import UnsaidCounts
from rlboost_jax.sequences.identities import Version

T = TypeVar("T")


class WorkerParameters(Protocol):
    """Part of `rlboost_jax.engine.engine_parameters.EngineParameters` that a worker needs."""

    def prepare(self, params: Any) -> Any: ...
    def arriving(self, shapes: Mapping[str, tuple[int, ...]]) -> Any: ...


class WorkerEngine(Protocol):
    """Part of `rlboost_jax.engine.engine.Engine` that a worker needs."""

    @property
    def parameters(self) -> WorkerParameters: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def version(self) -> Version | None: ...
    @property
    def in_flight(self) -> int: ...

    def load(self, params: Any, version: Version) -> None: ...
    def submit(self, requests: Sequence[GenerateRequest]) -> None: ...
    def release(self, request_ids: Sequence[int]) -> list[int]: ...
    def held(self) -> Sequence[int]: ...
    def begin(self) -> int: ...
    def follow(self) -> int: ...
    def finish(self) -> Any: ...


Emit = Callable[[TokenBatch | Released | Capacity | TokenScores], None]
Command = Callable[[], None]


class WorkerStopped(RuntimeError):
    """The engine's thread has ended and carries out no further command."""


class EngineWorker:
    """Runs an engine in a thread. All methods may be called from any thread."""

    def __init__(
        self,
        engine: WorkerEngine,
        spans: Recorder | None = None,
        lane: str = ENGINE_LANE,
        *,
        turns: Turns | None = None,
    ):
        """Set up without running anything, which `start` does.

        Args:
            spans: of this process; dispatches are on a lane of their own.
            turns: None: the device is this engine's alone. Else no dispatch follows another
                unseen: a command waits for the running one and no more.
        """
        self._turns = turns
        self._open = True  # there are slots
        self._engine = engine
        self.spans, self._lane = spans or Recorder(), lane
        self._emit: Emit = lambda message: None
        self._commands: queue.SimpleQueue[tuple[Command, Future[Any] | None]] = queue.SimpleQueue()
        self._end: BaseException | None = None  # why nothing is carried out any more
        self._ending = threading.Lock()  # of `_end`, and what is queued before it is set
        self._digest = ""  # of the engine's parameters; "" where nobody said
        self._unsent: DispatchLike | None = None
        self._sequence = 0
        self._sampled = 0
        self.unsaid = UnsaidCounts()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self.failure: Future[None] = _promise()  # its exception is the engine's

    @property
    def sampled(self) -> int:
        """Number of tokens sampled since the beginning."""
        return self._sampled

    @property
    def held(self) -> int:
        """Number of requests that run or wait, as of the last dispatch."""
        return self._engine.running + self._engine.waiting

    @property
    def version(self) -> Version | None:
        return self._engine.version

    @property
    def parameters(self) -> WorkerParameters | None:
        """What brings parameters to the device during the work; None: others take turns on it."""
        return None if self._turns is not None else self._engine.parameters

    def start(self, emit: Emit) -> None:
        """Start the thread; `emit` gets every message, in that thread."""
        self._emit = emit
        self._thread.start()

    def submit(self, requests: Sequence[GenerateRequest], params_digest: str) -> None:
        """Accept requests; those for other parameters than the engine's are returned."""
        self._put(lambda: self._submit(requests, params_digest))

    def offer(self, texts: Sequence[tuple[bytes, bytes]]) -> None:
        """Hand the engine prompts, and responses to them that drafts may be made from."""
        engine: Any = self._engine  # one that has said that it drafts
        self._put(lambda: engine.texts.offer(texts, engine.limits))

    def release(self, request_ids: Sequence[int]) -> None:
        """Stop requests, send their tokens so far, and emit `Released` with all of them."""
        self._put(lambda: self._release(request_ids))

    def load(self, params: Any, version: Version, params_digest: str) -> Future[None]:
        """Return what is held and swap the parameters; done when the engine has them."""

        def swap(engine: Any) -> None:
            engine.load(params, version)
            self._digest = params_digest
            if self._turns is not None:
                self._turns.loaded(version)

        return self.call(swap)

    def call(self, function: Callable[[Any], T]) -> Future[T]:
        """Return what is held and run `function(engine)`; the future has its result or exception.

        It may change the parameters: no work is taken until the next `load`.
        """
        return self._ask(lambda: self._call(function), fatal=False)

    def resize(self, resize: Callable[[Any], tuple[T, Capacity]]) -> Future[T]:
        """Run `resize(engine)`, and emit the capacity that it returns."""
        return self._ask(lambda: self._resize(resize))

    def between(self, function: Callable[[], T]) -> Future[T]:
        """Run a function between two dispatches; what is held stays."""
        return self._ask(function, fatal=False)

    def answer(self, function: Callable[[], TokenScores]) -> None:
        """Emit what a function returns that runs between two dispatches."""
        self._put(lambda: self._emit(function()))

    def wake(self) -> None:
        """Have the thread ask again whether the engine may run."""
        self._put(lambda: None)

    def reset(self) -> Future[None]:
        """Forget what is held. Messages emitted before it is done belong to the old stream."""
        return self._ask(self._reset)

    def stop(self) -> Future[None]:
        """End the thread after what is in flight; done when its tokens were emitted."""
        return self._ask(self._stop)

    def _ask(self, command: Callable[[], T], *, fatal: bool = True) -> Future[T]:
        """Queue a command. If it is `fatal`, its exception is the worker's failure."""
        answer: Future[T] = _promise()

        def run() -> None:
            try:
                answer.set_result(command())
            except Exception as error:
                answer.set_exception(error)
                if fatal:
                    raise

        self._put(run, answer)
        return answer

    def _put(self, command: Command, answer: Future[Any] | None = None) -> None:
        with self._ending:
            if self._end is None:
                self._commands.put((command, answer))
            elif answer is not None:
                answer.set_exception(self._end)

    def _work(self) -> None:
        end: BaseException = WorkerStopped("the engine's thread has been stopped")
        try:
            self._dispatch_until_stopped()
        except BaseException as error:  # its owner decides: the thread only hands it over
            end = error
            self.failure.set_exception(error)
        with self._ending:
            self._end = end
        while not self._commands.empty():
            _, answer = self._commands.get()
            if answer is not None:
                answer.set_exception(end)

    def _dispatch_until_stopped(self) -> None:
        idle, pause = True, 0.0
        while True:
            self._obey(wait=idle or pause > 0, seconds=pause or None)  # None: as long as it takes
            if self._stopping:
                return
            pause = self._turns.wait_seconds(self._engine) if self._turns else 0.0
            if pause > 0:
                self._flush()
                continue
            began = time.monotonic()
            more = self._engine.begin()
            idle = more == 0
            if idle:
                self._flush()
                pause = AGAIN_SECONDS if self._turns and self.held else 0.0
            while more:
                alone = self._turns is None and self._commands.empty()
                more = self._engine.follow() if alone else 0
                self._send()
                self._unsent = self._engine.finish()
                began = self._finished(self._unsent, began)

    def _finished(self, dispatch: DispatchLike, began: float) -> float:
        """Record a finished dispatch; the device has been running the next one since then."""
        ended = time.monotonic()
        self._sampled += len(dispatch.tokens)
        self.unsaid.add(dispatch)
        if self._turns is not None:
            self._turns.ended(self._engine, dispatch, ended - began)
        if self.spans.on:
            self.spans.add(
                "dispatch",
                self._lane,
                began,
                ended,
                sequence=self._sequence,  # that its tokens will be sent with
                tokens=len(dispatch.tokens),
                rollouts=len(dispatch.request_ids),
                running=self._engine.running,
                waiting=self._engine.waiting,
            )
        return ended

    def _obey(self, *, wait: bool, seconds: float | None = None) -> None:
        """Carry out all queued commands; if `wait`, until there was at least one.

        Args:
            seconds: to wait at most.
        """
        try:
            command, _ = self._commands.get(block=wait, timeout=seconds)
            command()
            while not self._stopping:
                command, _ = self._commands.get_nowait()
                command()
        except queue.Empty:
            return

    def _submit(self, requests: Sequence[GenerateRequest], params_digest: str) -> None:
        version = self._engine.version if params_digest == self._digest and self._open else None
        self._engine.submit([r for r in requests if r.version == version])
        foreign = [r.request_id for r in requests if r.version != version]
        if foreign:
            self._emit(Released(request_ids=pack_ids(foreign)))

    def _resize(self, resize: Callable[[Any], tuple[T, Capacity]]) -> T:
        self._flush()
        result, capacity = resize(self._engine)
        self._open = capacity.slots > 0
        self._emit(capacity)
        return result

    def _release(self, request_ids: Sequence[int]) -> None:
        self._flush()
        self._engine.release(request_ids)
        self._emit(Released(request_ids=pack_ids(request_ids)))

    def _call(self, function: Callable[[Any], T]) -> T:
        held = list(self._engine.held())
        if held:
            self._release(held)
        else:
            self._flush()
        self._digest = ""
        return function(self._engine)

    def _reset(self) -> None:
        self._engine.release(list(self._engine.held()))
        self._unsent = None
        self._sequence = 0

    def _stop(self) -> None:
        self._flush()
        self._stopping = True

    def _flush(self) -> None:
        if self._unsent is not None:
            self._send()

    def _send(self) -> None:
        """Emit the tokens not sent yet, with what the dispatches begun since can yield."""
        engine, dispatch = self._engine, self._unsent
        state = {
            "in_flight": engine.in_flight,
            "running": engine.running,
            "waiting": engine.waiting,
        }
        self._unsent = None
        if dispatch is None:
            version = Version(-1) if engine.version is None else engine.version
            self._send_batch(nothing_sampled(self._sequence, version, **state))
            return
        for batch in token_batches(dispatch, sequence=self._sequence, **state):
            self._send_batch(batch)

    def _send_batch(self, batch: TokenBatch) -> None:
        self._sequence += 1
        self._emit(batch)


def _promise() -> Future[Any]:
    """Future whose waiters may cancel without affecting the thread that completes it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
