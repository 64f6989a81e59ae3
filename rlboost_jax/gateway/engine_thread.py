"""Thread that runs an engine, with continuous batching over all requests.

The engine is not thread-safe: this thread alone touches it. Requests and cancellations wait in an
inbox and are taken between two dispatches. Tokens go to the event loop of the request.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlboost_jax.engine.dispatches import EngineDispatch
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.requests import RequestRejected
from rlboost_jax.gateway.tenancy import Tenancy
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.platform.closing import ClosingThread


class RequestYield(NamedTuple):
    """Tokens of one dispatch for one request."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of float32, which they are exactly
    last: bool


class EngineFailed(RuntimeError):
    """The engine's thread has ended; nothing is sampled any more."""


@dataclass(eq=False)
class TokenStream:
    """Tokens of one request, as its event loop reads them."""

    request: GenerateRequest
    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[RequestYield | Exception]" = field(default_factory=asyncio.Queue)

    def put(self, item: "RequestYield | Exception") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads it
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class EngineThread(ClosingThread):
    """Owner of the engine. Use as a context manager, or `close` it."""

    def __init__(self, engine: Engine, tenancy: Tenancy | None = None) -> None:
        """
        Args:
            tenancy: of a device that others use too; closed with this.
        """
        super().__init__("gateway engine")
        self._engine, self._tenancy = engine, tenancy
        self._arrived: list[TokenStream] = []
        self._cancelled: set[int] = set()
        self._streams: dict[int, TokenStream] = {}
        self._failure: Exception | None = None
        self._thread.start()

    def begin(self, request: GenerateRequest) -> TokenStream:
        """Start to sample. Called in an event loop, which gets all tokens.

        Raises:
            EngineFailed.
        """
        stream = TokenStream(request, asyncio.get_running_loop())
        with self._changed:
            if self._failure is not None or self._closed:
                raise EngineFailed(f"the engine has ended: {self._failure or 'closed'}")
            self._arrived.append(stream)
            self._changed.notify()
        return stream

    def cancel(self, request_id: int) -> None:
        """Stop a request, if it still runs. Its later tokens are dropped."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take():
                self._tell()
                began, backlog = time.monotonic(), self._engine.backlog
                if self._engine.begin():
                    dispatch = self._engine.finish()
                    self._ran(dispatch, backlog, time.monotonic() - began)
                    self._deliver(dispatch)
        except Exception as error:
            self._failure = error
        finally:
            if self._tenancy is not None:
                self._tenancy.close()
            with self._changed:
                self._closed = True
                left = [*self._streams.values(), *self._arrived]
            reason = self._failure or "closed"
            for stream in left:
                stream.put(EngineFailed(f"the engine has ended: {reason}"))

    def _take(self) -> bool:
        """Wait for something to do; False: the thread is to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._arrived or self._cancelled or self._streams
            )
            if self._closed:
                return False
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, set()
        for stream in arrived:
            request_id = stream.request.request_id
            if request_id in cancelled:
                continue
            try:
                self._engine.submit([stream.request])
            except RequestRejected as error:
                stream.put(error)
            else:
                self._streams[request_id] = stream
                if self._tenancy is not None:
                    self._tenancy.arrived(request_id)
        gone = [request_id for request_id in cancelled if request_id in self._streams]
        self._engine.release(gone)
        for request_id in gone:
            del self._streams[request_id]
            if self._tenancy is not None:
                self._tenancy.over(request_id)
        return True

    def _tell(self) -> None:
        if self._tenancy is not None:
            self._tenancy.tell(self._engine.backlog)

    def _ran(self, dispatch: EngineDispatch, before: dict[int, int], seconds: float) -> None:
        """Report a finished dispatch to the tenancy.

        Args:
            before: the engine's backlog as it began.
        """
        if self._tenancy is None:
            return
        self._tenancy.ran(
            dispatch.request_ids.tolist(),
            prefilled=any(before.values()),
            steps=int(np.max(dispatch.counts, initial=1)),
            seconds=seconds,
        )
        for request_id in dispatch.finished:
            self._tenancy.over(request_id)
        self._tell()

    def _deliver(self, dispatch: EngineDispatch) -> None:
        finished = set(dispatch.finished)
        for request_id, found in _rows(dispatch):
            last = request_id in finished
            stream = self._streams.pop(request_id) if last else self._streams[request_id]
            stream.put(RequestYield(*found, last))


def _rows(
    dispatch: EngineDispatch,
) -> Iterator[tuple[int, tuple[tuple[int, ...], tuple[float, ...]]]]:
    ends = np.cumsum(dispatch.counts, dtype=np.int64)
    for request_id, count, end in zip(dispatch.request_ids, dispatch.counts, ends, strict=True):
        part = slice(int(end) - int(count), int(end))
        tokens = tuple(dispatch.tokens[part].tolist())
        yield int(request_id), (tokens, tuple(dispatch.logprobs[part].tolist()))
