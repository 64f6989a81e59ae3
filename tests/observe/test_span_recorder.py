import threading
import time

import pytest

from rlboost_jax.observe.span_recorder import Recorder, traced


def names(recorder: Recorder) -> list[str]:
    return [span.name for span in recorder.take()[0]]


def test_only_the_chosen_step_is_recorded() -> None:
    recorder = Recorder(2)
    for step in range(4):
        recorder.at(step)
        with recorder.span(f"in {step}", "main"):
            pass
    assert names(recorder) == ["in 2"]
    never = Recorder(0)
    never.at(0)
    with never.span("at 0", "main"):
        pass
    assert names(never) == [] and not never.near(0) and not never.near(1)


def test_a_version_is_near_the_step_that_samples_from_it_or_makes_it() -> None:
    assert [v for v in range(6) if Recorder(2).near(v)] == [2, 3]


def test_a_span_begun_in_the_step_is_kept_and_so_is_one_that_failed() -> None:
    recorder = Recorder(2)
    recorder.at(2)
    with pytest.raises(KeyError), recorder.span("outer", "main", count=3):
        with recorder.span("inner", "main"):
            time.sleep(0.001)
        recorder.at(3)
        raise KeyError
    inner, outer = recorder.take()[0]
    assert (outer.name, outer.lane, outer.args) == ("outer", "main", {"count": 3})
    assert inner.seconds >= 0.001
    assert outer.start <= inner.start
    assert inner.start + inner.seconds <= outer.start + outer.seconds + 1e-9


def test_what_is_too_much_is_counted() -> None:
    recorder = Recorder(1, limit=10)
    threads = [
        threading.Thread(target=lambda: [recorder.add("n", "l", 0.0, 1.0) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans, dropped = recorder.take()
    assert (len(spans), dropped) == (10, 190)
    recorder.add("later", "l", 0.0, 1.0)
    assert names(recorder) == ["later"] and recorder.take() == ([], 0)


def test_functions_and_methods_with_a_span_around_each_call() -> None:
    class Worker:
        def __init__(self) -> None:
            self._spans = Recorder(1)

        @traced("work", "main")
        def work(self, amount: int, *, more: int = 0) -> int:
            """Adds."""
            return amount + more

    worker = Worker()
    assert worker.work(1, more=2) == 3 and names(worker._spans) == []
    worker._spans.at(1)
    assert worker.work(1, more=2) == 3 and Worker.work.__doc__ == "Adds."
    assert worker._spans.timed("twice", "main", lambda x: 2 * x)(4) == 8
    assert names(worker._spans) == ["work", "twice"]
