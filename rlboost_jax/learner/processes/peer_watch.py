"""Detection of the end of another process of the trainer, whatever this one is waiting for.

Each pair of processes has a connection on which nothing is said but, at the end, why. A
collective that waits for a process which is gone may never return: then this process is ended
from the thread that watches.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, TypeVar

from rlboost_jax.learner.processes.trainer_channel import PeerGone, TrainerChannel
from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import Mistake

GRACE_SECONDS: Final = 5.0  # for the main thread to end by itself once a process is lost
EXPLAIN_SECONDS: Final = 2.0  # for a broken connection to be noticed after a broken collective


class PeerEnded(RuntimeError):
    """Another process of the trainer ended before its time; the last checkpoint is sound."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # to end with here


class PeerWatch:
    """A thread that notices how another process of the trainer ends.

    Args:
        channel: used by nobody else.
        error: (what the other one did in words, its exit code) → what to raise here.
    """

    def __init__(self, channel: TrainerChannel, error: Callable[[str, int], PeerEnded]) -> None:
        self._channel, self._error = channel, error
        self.loss: Future[PeerEnded | None] = Future()  # of the other one; None: it ended well
        self._ending = False  # this process
        threading.Thread(target=self._wait, name="watch", daemon=True).start()

    def tell(self, listener: Callable[[Exception], None]) -> None:
        """Have a listener called, from a thread, with the loss; at once if it is known."""

        def ended(loss: Future[PeerEnded | None]) -> None:
            if (error := loss.result()) is not None:
                listener(error)

        self.loss.add_done_callback(ended)

    def verdict(self) -> PeerEnded | None:
        """Error for the other process's known end; None: the run is over."""
        try:
            return self.loss.result(GRACE_SECONDS)
        except TimeoutError:
            return self._error("is gone without a word", exits.BROKEN)

    def end(self, error: BaseException | None) -> None:
        """Tell the other process why this one ends, and stop watching."""
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
            self.loss.set_result(None)
            return
        loss = self._error(f"ended: {reason}" if reason else "is gone without a word", code)
        self.loss.set_result(loss)
        threading.main_thread().join(GRACE_SECONDS)  # which ends daemon threads such as this
        if not self._ending:
            # The main thread waits for what will not come.
            exits.leave(f"error: {loss}", loss.exit_code, at_once=True)


Me = TypeVar("Me", bound="Peers")


class Peers:
    """Connections to other processes. A context manager: its end is reported to all of them.

    Where the reason for an error is that another process has ended, that is raised in its place.
    """

    def __init__(
        self,
        channels: Mapping[str, Sequence[TrainerChannel]],
        errors: Sequence[Callable[..., PeerEnded]],
    ) -> None:
        """Start a watch on each process.

        Args:
            channels: to each, by purpose; one purpose is "watch".
            errors: of `PeerWatch`, for each.
        """
        self.channels = channels
        self.watches = [PeerWatch(*each) for each in zip(channels["watch"], errors, strict=True)]

    def __enter__(self: Me) -> Me:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loss = _loss_behind(error, self.watches)
        for watch in self.watches:
            watch.end(error)
        for channel in (c for channels in self.channels.values() for c in channels):
            channel.close()
        if loss is not None:
            raise loss from error


def _loss_behind(error: BaseException | None, watches: Sequence[PeerWatch]) -> PeerEnded | None:
    """End of another process that caused an error here, if one did.

    Collectives break off in ways of their own, often before the end itself is known.
    """
    if not isinstance(error, Exception):
        return None
    of_peer = isinstance(error, PeerGone) or isinstance(error.__cause__, PeerGone)
    if type(error).__module__.startswith("rlboost_") and not of_peer:
        return None
    deadline = time.monotonic() + EXPLAIN_SECONDS
    for watch in watches:
        with contextlib.suppress(TimeoutError):
            loss = watch.loss.result(max(0.0, deadline - time.monotonic()))
            if loss is not None:
                return loss
    return None


def _line(error: BaseException) -> str:
    known = isinstance(error, Mistake) or type(error).__module__.startswith("rlboost_")
    text = str(error).strip().splitlines()
    if known and text:
        return text[0]
    return type(error).__name__ + (f": {text[0]}" if text else "")
