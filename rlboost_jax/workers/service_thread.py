"""An event loop in a thread of its own, whose tasks do not fail unseen."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CLOSE_SECONDS = 5.0


class ServiceThread:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine to its end, from another thread.

        Raises TimeoutError after `timeout` seconds.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def call(
        self,
        function: Callable[..., None],
        *arguments: Any,
        fail: Callable[[Exception], None] | None = None,
    ) -> None:
        """Schedule a call from any thread; calls run in order.

        Args:
            fail: called with what it raises.
        """

        def called() -> None:
            try:
                function(*arguments)
            except Exception as error:
                if fail is None:
                    raise
                fail(error)

        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(called)

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], fail: Callable[[Exception], None]
    ) -> None:
        """Start a task from any thread.

        Args:
            fail: called with what it raises.
        """

        def over(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                fail(error)

        def begin() -> None:
            task = self._loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(over)

        if threading.current_thread() is self._thread:
            begin()
        else:
            self.call(begin)

    def close(self) -> None:
        """Cancel the running tasks, and end. A second call does nothing."""
        if not self.lives:
            return

        async def cancel() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=CLOSE_SECONDS)
            await asyncio.get_running_loop().shutdown_default_executor()

        with contextlib.suppress(TimeoutError):
            self.run(cancel(), CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self.lives:
            self._loop.close()
