import threading
from collections.abc import Callable
from typing import Any

import pytest

from rlboost_jax.observe.isolated_tracker import IsolatedTracker
from rlboost_jax.observe.summary import summarize
from rlboost_jax.observe.tracker import Tracker, Trackers
from tests.observe.conftest import sample
from tests.patience import PATIENCE_SECONDS

SUMMARY = summarize([], reserved_price_per_hour=1.0)


class Recorder:
    """Writes down what it is shown, and in which thread."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.threads: set[str] = set()

    def _add(self, what: Any) -> None:
        self.log.append(what)
        self.threads.add(threading.current_thread().name)

    def samples(self, rows: Any) -> None:
        self._add(("samples", len(rows)))

    def step(self, row: Any) -> None:
        self._add(("step", row["step"]))

    def finish(self, summary: Any) -> None:
        self._add("finish")

    def close(self) -> None:
        self._add("close")


def tell(tracker: Tracker | Trackers) -> None:
    tracker.samples([sample()])
    tracker.step({"step": 20})
    tracker.finish(SUMMARY)
    tracker.close()


def test_it_is_shown_everything_in_order_in_one_thread_of_its_own() -> None:
    shown, notes = Recorder(), list[str]()
    tell(IsolatedTracker("board", lambda: shown, note=notes.append))
    assert shown.log == [("samples", 1), ("step", 20), "finish", "close"]
    assert shown.threads == {"board"} and not notes


def test_each_tracker_hears_of_each_step_once() -> None:
    one, other = Recorder(), Recorder()
    tell(Trackers([one, other]))
    assert one.log == other.log == [("samples", 1), ("step", 20), "finish", "close"]


@pytest.mark.parametrize("where", ["make", "samples", "step", "finish", "close"])
@pytest.mark.parametrize("error", [OSError("no room\nat all"), SystemExit(3)])
def test_a_failure_is_said_once_and_it_is_closed_and_shown_nothing_more(
    where: str, error: BaseException
) -> None:
    shown, notes = Recorder(), list[str]()

    def fail(*_: Any) -> Any:
        raise error

    if where != "make":
        setattr(shown, where, fail)
    tracker = IsolatedTracker(
        "board", fail if where == "make" else lambda: shown, note=notes.append
    )
    tell(tracker)
    tell(tracker)
    reason = " ".join(str(error).split())
    assert notes == [
        "board is left out from here on, the run goes on: " + f"{type(error).__name__}: {reason}"
    ]
    before = [("samples", 1), ("step", 20), "finish"]
    order = ["make", "samples", "step", "finish", "close"]
    closed = ["close"] if where in ("samples", "step", "finish") else []
    assert shown.log == before[: max(0, order.index(where) - 1)] + closed


def test_the_end_of_the_run_waits_for_the_closing_of_one_that_failed() -> None:
    shown, failed, waited_for = Recorder(), threading.Event(), threading.Event()

    def fail(_: Any) -> None:
        raise OSError("no room")

    def close() -> None:
        waited_for.wait(PATIENCE_SECONDS)
        shown.log.append("closed")

    shown.step, shown.close = fail, close  # type: ignore[method-assign]
    tracker = IsolatedTracker("board", lambda: shown, note=lambda _: failed.set())
    join = tracker._thread.join

    def joined(timeout: float) -> None:
        waited_for.set()
        join(timeout)

    tracker._thread.join = joined  # type: ignore[method-assign, assignment]
    tracker.step({"step": 0})
    assert failed.wait(PATIENCE_SECONDS)
    tracker.close()
    assert shown.log == ["closed"]


def test_of_two_reasons_at_once_one_is_said() -> None:
    """Its thread reports that it failed, and the run's that it is behind."""
    notes = list[str]()
    tracker = IsolatedTracker("board", Recorder, note=notes.append)
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    class Asked(threading.Event):
        def is_set(self) -> bool:
            found = super().is_set()
            both.wait()  # what was found has become old
            return found

    tracker.close()
    tracker._abandoned = Asked()
    reasons = [
        threading.Thread(target=tracker._abandon, args=[reason]) for reason in ("one", "other")
    ]
    for thread in reasons:
        thread.start()
    for thread in reasons:
        thread.join(PATIENCE_SECONDS)
    assert len(notes) == 1


def test_one_that_cannot_be_closed_leaves_no_other_open() -> None:
    class Broken(Recorder):
        def close(self) -> None:
            raise OSError("no room")

    one, other = Recorder(), Recorder()
    with pytest.raises(OSError, match="no room"):
        Trackers([one, Broken(), other]).close()
    assert one.log == other.log == ["close"]


def hanging(shown: Recorder) -> tuple[Callable[[], Tracker], threading.Event]:
    """Makes a tracker that does not come back from its first step until the event is set."""
    released, hung = threading.Event(), False

    def step(row: Any) -> None:
        nonlocal hung
        if not hung:
            hung = True
            released.wait(PATIENCE_SECONDS)
        else:
            shown.log.append(row)

    shown.step = step  # type: ignore[method-assign]
    return lambda: shown, released


def test_one_that_hangs_delays_nobody() -> None:
    shown, notes = Recorder(), list[str]()
    make, released = hanging(shown)
    tracker = IsolatedTracker("board", make, note=notes.append, close_seconds=0.01, most_waiting=5)
    for step in range(20):
        tracker.step({"step": step})
    assert notes == ["board is left out from here on, the run goes on: it is 5 calls behind"]
    tracker.close()
    released.set()
    tracker._thread.join(PATIENCE_SECONDS)
    assert shown.log == ["close"], "what waited is thrown away"


def test_the_end_of_the_run_waits_for_it_for_so_long_only() -> None:
    shown, notes = Recorder(), list[str]()
    make, released = hanging(shown)
    tracker = IsolatedTracker("board", make, note=notes.append, close_seconds=0.01)
    tracker.step({"step": 0})
    tracker.close()
    assert len(notes) == 1 and "it was not done 0.01 s after the end" in notes[0]
    released.set()
    tracker._thread.join(PATIENCE_SECONDS)
