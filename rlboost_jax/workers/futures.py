"""Combination of futures."""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

Made = TypeVar("Made")


def when_all(asked: Sequence[Future[Any]], made: Callable[[list[Any]], Made]) -> Future[Made]:
    """Future made of the results of several, in the order of `asked`, in whichever thread.

    Cancelled, it has those cancelled that nobody works on yet. The first error is its own.
    """
    result: Future[Made] = Future()
    if not asked:
        result.set_result(made([]))
        return result
    results: list[Any] = [None] * len(asked)
    lock, left = threading.Lock(), len(asked)

    def arrived(place: int, future: Future[Any]) -> None:
        nonlocal left
        try:
            found = future.result()
        except (Exception, CancelledError) as error:
            with lock:
                left = -1  # whatever else comes
                if not result.done() and result.set_running_or_notify_cancel():
                    result.set_exception(error)
            return
        with lock:
            results[place] = found
            left -= 1
            last = left == 0
        if last and result.set_running_or_notify_cancel():  # else nobody wants it any more
            result.set_result(made(results))

    def unwanted(result: Future[Made]) -> None:
        if result.cancelled():
            for future in asked:
                future.cancel()

    for place, future in enumerate(asked):
        future.add_done_callback(functools.partial(arrived, place))
    result.add_done_callback(unwanted)
    return result


def seen(future: Future[Made]) -> Future[Made]:
    """Future that is done as `future` is; cancelling it leaves `future` running."""
    copy: Future[Made] = Future()

    def done(future: Future[Made]) -> None:
        if not copy.set_running_or_notify_cancel():
            return
        try:
            result = future.result()
        except (Exception, CancelledError) as error:
            copy.set_exception(error)
        else:
            copy.set_result(result)

    future.add_done_callback(done)
    return copy
