"""Calls of a user's code with a time limit: errors and delays are values and end nothing else.

Plain functions are called in threads, since they would block the event loop. A thread cannot be
ended: the caller of one that is late learns that it is still there.
"""

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rlboost_jax.environments.results import BadResult

_SHOWN: Final = 500  # characters of an exception


class CallFailed(RuntimeError):
    """A call raised, or took too long; the message says which."""


class ResultUnusable(CallFailed):
    """A tool was carried out and returned what nobody can read."""


@dataclass(frozen=True)
class _Raised:
    text: str
    failure: type[CallFailed] = CallFailed


class OwnThread:
    """A thread that runs calls one after the other; it starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0

    @property
    def busy(self) -> bool:
        """Whether a call is running, awaited or not."""
        return self._pending > 0

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function; returns its result, or a record of what it raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._pending += 1
        self._calls.put((function, arguments, loop, future))
        return await future

    def end(self) -> None:
        """End the thread once it has done its calls."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (entry := self._calls.get()) is not None:
            function, arguments, loop, future = entry
            try:
                result = function(*arguments)
            except BaseException as error:  # also an exit: it is the caller's to judge
                result = _raised(error)
            with contextlib.suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(self._settle, future, result)

    def _settle(self, future: "asyncio.Future[Any]", result: Any) -> None:
        self._pending -= 1
        if not future.done():
            future.set_result(result)


async def called(
    function: Callable[..., Any], *arguments: Any, seconds: float, thread: OwnThread
) -> Any:
    """Call a function, plain or `async def`, and return its result.

    Args:
        seconds: limit of the call.
        thread: in which it is called; what it returns to be awaited is awaited in the loop.

    Raises:
        CallFailed: ResultUnusable where it was `BadResult` that it raised.
    """

    async def result() -> Any:
        value = await thread.call(function, *arguments)
        return await _guarded(value) if inspect.isawaitable(value) else value

    task = asyncio.create_task(result())
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not task.done():
        raise CallFailed(f"took longer than {seconds:g} s")
    if task.cancelled():
        raise CallFailed("CancelledError")
    value = task.result()
    if isinstance(value, _Raised):
        raise value.failure(value.text)
    return value


async def _guarded(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # an exit would end the loop
        return _raised(error)


def _raised(error: BaseException) -> _Raised:
    failure = ResultUnusable if isinstance(error, BadResult) else CallFailed
    return _Raised(described(error), failure)


def described(error: BaseException) -> str:
    """Describe an exception, for people and for a policy."""
    try:
        said = str(error)
    except Exception:  # of a class of its own
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text[:_SHOWN].encode(errors="backslashreplace").decode()
