"""Work on a disk that hangs: who waits for it, and for how long. Looks are the test's own."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlboost_jax.platform import disk_thread
from rlboost_jax.platform.disk_thread import (
    MOST_SECONDS,
    SLOW_DISK,
    DiskStalled,
    DiskThread,
    ThreadClosed,
)
from tests.patience import PATIENCE_SECONDS

FOLDER = Path("/run/checkpoints")
BOUND = 10_000.0  # which the process's own looks do not come to
LOOKS = int(BOUND / MOST_SECONDS)


@pytest.fixture
def disk() -> Iterator[threading.Event]:
    """It answers once this is set."""
    answers = threading.Event()
    yield answers
    answers.set()


@pytest.fixture
def thread() -> DiskThread:
    return DiskThread("test", stall_seconds=BOUND)


def hanging(thread: DiskThread, disk: threading.Event, **size: int) -> Callable[[], str]:
    """Submit work that waits for the disk; what is returned waits for its end."""
    begun, after = threading.Event(), threading.Event()

    def work() -> str:
        thread.sign("writing")
        begun.set()
        disk.wait()
        try:
            thread.sign("renaming")
        finally:
            after.set()
        return "done"

    end = thread.submit(work, "checkpoint 7", FOLDER, **size)
    assert begun.wait(PATIENCE_SECONDS)
    thread.look(0.0)  # which sees the sign

    def ended() -> str:
        return end.result(PATIENCE_SECONDS)

    ended.after = after  # type: ignore[attr-defined]
    return ended


def look(thread: DiskThread, times: int, seconds: float = MOST_SECONDS) -> None:
    for _ in range(times):
        thread.look(seconds)


def test_what_is_submitted_is_done_in_order(thread: DiskThread) -> None:
    seen: list[int] = []
    ends = [thread.submit(lambda i=i: seen.append(i) or i, "row", FOLDER) for i in range(5)]
    thread.close()
    assert seen == [end.result(0) for end in ends] == list(range(5))
    with pytest.raises(ThreadClosed):
        thread.submit(lambda: None, "row", FOLDER)


def test_what_work_raises_is_raised_where_it_is_waited_for(thread: DiskThread) -> None:
    end = thread.submit(lambda: 1 / 0, "row", FOLDER)
    after = thread.submit(lambda: "and the next is done", "row", FOLDER)
    with pytest.raises(ZeroDivisionError):
        end.result(PATIENCE_SECONDS)
    assert after.result(PATIENCE_SECONDS) and thread.stalled is None


def test_what_was_submitted_cannot_be_taken_back(thread: DiskThread, disk: threading.Event) -> None:
    """Else the thread would end as it gives the result, and all after it would wait."""
    hanging(thread, disk)
    ends = [thread.submit(lambda: "done", "the rest", FOLDER) for _ in range(2)]
    assert not ends[0].cancel()
    disk.set()
    assert [end.result(PATIENCE_SECONDS) for end in ends] == ["done", "done"]


def test_work_that_hangs_is_abandoned_with_all_that_waits_behind_it(
    thread: DiskThread, disk: threading.Event
) -> None:
    end = hanging(thread, disk)
    behind = thread.submit(lambda: None, "checkpoint 8", FOLDER)
    look(thread, LOOKS - 1)
    assert not behind.done() and thread.shown().startswith(f"checkpoint 7 in {FOLDER}: writing for")
    look(thread, 1)
    for wait in (end, lambda: behind.result(PATIENCE_SECONDS)):
        with pytest.raises(DiskStalled) as caught:
            wait()
        assert str(caught.value) == (
            f"checkpoint 7 got nothing done for {BOUND:.0f} s (writing) in {FOLDER}: does its disk "
            "answer? The same command goes on from the newest durable checkpoint; "
            "checkpoint.disk_seconds is how long a disk is waited for"
        )
    with pytest.raises(DiskStalled):
        thread.submit(lambda: None, "checkpoint 9", FOLDER)
    thread.close()  # waits for nothing any more


def test_a_clock_that_was_set_back_is_named(thread: DiskThread, disk: threading.Event) -> None:
    """TensorStore waits until the clock has caught up; the disk is not to blame."""
    end = hanging(thread, disk)
    thread.look(0.0, 7_200.0)
    look(thread, LOOKS)
    with pytest.raises(DiskStalled, match=r"clock was set back by 7,200 s, which TensorStore wait"):
        end()


def test_a_clock_that_drifts_or_goes_forward_is_not_set_back() -> None:
    assert disk_thread.set_back(1e9, 1e9 - 7_200) == 7_200
    assert [disk_thread.set_back(1e9, 1e9 + by) for by in (-0.5, 0.0, 0.5, 7_200)] == [0.0] * 4


def test_abandoned_work_changes_nothing_when_the_disk_answers_again(
    thread: DiskThread, disk: threading.Event
) -> None:
    end = hanging(thread, disk)
    look(thread, LOOKS)
    disk.set()
    assert end.after.wait(PATIENCE_SECONDS)  # type: ignore[attr-defined]
    with pytest.raises(DiskStalled):  # and not "done"
        end()
    with pytest.raises(DiskStalled):
        thread.sign("renaming")


def test_whatever_gets_done_starts_the_time_anew(thread: DiskThread, disk: threading.Event) -> None:
    end = hanging(thread, disk)
    for _ in range(3):
        look(thread, LOOKS - 1)
        thread.sign()
        look(thread, 1)
    disk.set()
    assert end() == "done"


def test_much_may_take_longer(thread: DiskThread, disk: threading.Event) -> None:
    """All of it may be seen at its end only."""
    end = hanging(thread, disk, size_bytes=int(BOUND) * SLOW_DISK)
    look(thread, 2 * LOOKS - 1)
    assert thread.stalled is None
    look(thread, 1)
    with pytest.raises(DiskStalled):
        end()


def test_time_in_which_the_process_was_stopped_does_not_count(
    thread: DiskThread, disk: threading.Event
) -> None:
    """A clock that nobody sets goes on meanwhile, by days in a laptop that sleeps."""
    end = hanging(thread, disk)
    look(thread, LOOKS - 1, seconds=1e9)
    disk.set()
    assert end() == "done"


def test_nothing_counts_where_nothing_is_to_be_done(
    thread: DiskThread, disk: threading.Event
) -> None:
    look(thread, 2 * LOOKS)
    end = hanging(thread, disk)
    look(thread, LOOKS - 1)
    disk.set()
    assert end() == "done"


def test_the_process_looks_by_itself_and_tells_who_listens(disk: threading.Event) -> None:
    told = threading.Event()
    disk_thread.listen(lambda stall: told.set())
    thread = DiskThread("test", stall_seconds=0.01)
    end = thread.submit(disk.wait, "rows", FOLDER)
    with pytest.raises(DiskStalled, match=r"^rows got nothing done for \d s in"):
        end.result(PATIENCE_SECONDS)
    assert told.wait(PATIENCE_SECONDS)
