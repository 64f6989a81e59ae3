"""Seeing the end of another process of the trainer, whatever this one is waiting for.

Each pair of processes has a connection on which nothing is said but, at the end, why. A
collective that waits for a process which is gone may never return: then this process is ended
from the thread that watches.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rlboost_jax import exits
from rlboost_jax.learner.control import Channel, PeerGone
from rlboost_jax.settings.errors import Mistake

GRACE_SECONDS: Final = 5.0  # for the main thread to end by itself once a process is lost

EXPLAIN_SECONDS: Final = 2.0  # for a broken connection to be noticed after a broken collective


class PeerEnded(RuntimeError):
    """Another process of the trainer ended before its time; the last checkpoint is sound."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # to end with here


class Watch:
    """A thread that notices how another process of the trainer ends.

    Args:
        channel: used by nobody else.
        error: (what the other one did in words, its exit code) → what to raise here.
    """

    def __init__(self, channel: Channel, error: Callable[[str, int], PeerEnded]) -> None:
        self._channel, self._error = channel, error
        self.loss: PeerEnded | None = None  # once the other one has ended badly
        self._over = self._ending = False  # the other one has ended well, or this one
        self._known = threading.Event()  # that the other one has ended
        self._listeners: list[Callable[[Exception], None]] = []
        self._lock = threading.Lock()  # of the listeners and the loss
        threading.Thread(target=self._wait, name="watch", daemon=True).start()

    def tell(self, listener: Callable[[Exception], None]) -> None:
        """Call it, from a thread, with the loss; at once where that is known."""
        with self._lock:
            if self.loss is None:
                self._listeners.append(listener)
                return
        listener(self.loss)

    def verdict(self) -> PeerEnded | None:
        """Why the other one ended, which is known to have; None: the run is over."""
        self._known.wait(GRACE_SECONDS)
        return None if self._over else self.loss or self._error("is gone without a word", 1)

    def lost_within(self, seconds: float) -> bool:
        """Whether the other one has ended badly by then."""
        self._known.wait(seconds)
        return self.loss is not None

    def end(self, error: BaseException | None) -> None:
        """Say why this process ends, and stop watching."""
        self._ending = True
        with contextlib.suppress(PeerGone):
            self._channel.send([exits.of_error(error), "" if error is None else _line(error)])
        self._channel.close()

    def _wait(self) -> None:
        try:
            code, reason = self._channel.receive()
        except PeerGone:
            code, reason = exits.BROKEN, ""
        if self._ending:
            return
        if code == exits.COMPLETE:
            self._over = True
            self._known.set()
            return
        loss = self._error(f"ended: {reason}" if reason else "is gone without a word", code)
        with self._lock:
            self.loss = loss
            listeners = list(self._listeners)
        self._known.set()
        for listener in listeners:
            listener(loss)
        if not _ended_within(GRACE_SECONDS):
            print(f"error: {loss}", file=sys.stderr, flush=True)
            os._exit(loss.exit_code)  # the main thread waits for what will not come


def loss_behind(error: BaseException | None, watches: Sequence[Watch]) -> PeerEnded | None:
    """The end of another process that is the reason for an error here, if one is.

    Collectives break off in ways of their own, often before the end itself is known.
    """
    ours = type(error).__module__.startswith("rlboost_") and not isinstance(error, PeerGone)
    if not isinstance(error, Exception) or ours:
        return None
    deadline = time.monotonic() + EXPLAIN_SECONDS
    for watch in watches:
        if watch.lost_within(max(0.0, deadline - time.monotonic())):
            return watch.loss
    return None


def _ended_within(seconds: float) -> bool:
    """Whether the main thread ended; daemon threads end with it, so this seldom returns True."""
    threading.main_thread().join(seconds)
    return not threading.main_thread().is_alive()


def _line(error: BaseException) -> str:
    known = isinstance(error, Mistake) or type(error).__module__.startswith("rlboost_")
    text = str(error).strip().splitlines()
    if known and text:
        return text[0]
    return type(error).__name__ + (f": {text[0]}" if text else "")
