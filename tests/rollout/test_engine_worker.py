"""The worker's promises to a manager, with a fake engine whose tokens are known."""

import queue
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax import messages
from rlboost_jax.messages import Released, TokenBatch
from rlboost_jax.rollout.engine_worker import EngineWorker, WorkerStopped
from tests.patience import PATIENCE_SECONDS


class Manager:
    """Collects what a worker emits, as a manager would."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[TokenBatch | Released] = queue.Queue()
        self.tokens: dict[int, list[int]] = {}
        self.batches: list[TokenBatch] = []
        self.released: set[int] = set()

    def take(self) -> TokenBatch | Released:
        message = self.inbox.get(timeout=PATIENCE_SECONDS)
        if isinstance(message, Released):
            self.released |= set(messages.unpack_ids(message.request_ids).tolist())
            return message
        self.batches.append(message)
        tokens = iter(messages.unpack_tokens(message.tokens).tolist())
        ids = messages.unpack_ids(message.request_ids).tolist()
        for i, count in zip(ids, messages.unpack_counts(message.counts).tolist(), strict=True):
            assert i not in self.released, "tokens after Released"
            self.tokens.setdefault(i, []).extend(next(tokens) for _ in range(count))
        assert next(tokens, None) is None
        return message


@pytest.fixture
def started(fakes):
    """Makes (worker, manager) around an engine that holds version 1."""
    workers = []

    def start(engine):
        worker, manager = EngineWorker(engine), Manager()
        worker.start(manager.inbox.put)
        worker.load({}, 1, "d1").result(PATIENCE_SECONDS)
        workers.append(worker)
        return worker, manager

    yield start
    for worker in workers:
        worker.stop()


def test_a_dispatch_is_announced_before_its_tokens_exist(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=4, gate=gate))
    worker.submit([fakes.request(1, tokens=6), fakes.request(2, tokens=3)], "d1")
    first = manager.take()
    assert (first.in_flight, first.tokens) == (7, b"")  # 4 of the one, 3 of the other
    gate.release()
    second = manager.take()
    assert (second.in_flight, len(second.tokens)) == (2, 7 * 4)
    gate.release()
    last = manager.take()
    assert (last.in_flight, last.running, len(last.tokens)) == (0, 0, 2 * 4)
    assert [b.sequence for b in manager.batches] == [0, 1, 2]


def test_what_follows_unseen_is_announced_with_what_it_follows(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=4, gate=gate, ahead=True))
    worker.submit([fakes.request(1, tokens=10), fakes.request(2, tokens=3)], "d1")
    first = manager.take()
    assert (first.in_flight, first.tokens) == (7 + 4, b"")
    gate.release()
    second = manager.take()
    assert (second.in_flight, len(second.tokens)) == (4 + 2, 7 * 4)
    gate.release()
    third = manager.take()
    assert (third.in_flight, len(third.tokens)) == (2, 4 * 4)
    gate.release()
    last = manager.take()
    assert (last.in_flight, last.running, len(last.tokens)) == (0, 0, 2 * 4)


def test_a_command_waits_for_what_is_in_flight_and_no_more(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=4, gate=gate, ahead=True))
    worker.submit([fakes.request(1, tokens=20)], "d1")
    assert manager.take().in_flight == 2 * 4
    worker.release([1])
    gate.release(2)
    assert [manager.take().in_flight for _ in range(2)] == [4, 0]
    assert set(messages.unpack_ids(manager.take().request_ids)) == {1}
    assert manager.tokens == {1: [fakes.expected_token(1, at) for at in range(8)]}
    assert not gate.acquire(blocking=False)


def test_tokens_of_the_dispatch_come_before_released(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=4, gate=gate))
    worker.submit([fakes.request(1, tokens=20), fakes.request(2, tokens=20)], "d1")
    assert manager.take().in_flight == 8
    worker.release([1, 99])
    gate.release()
    assert manager.take().in_flight == 0
    assert set(messages.unpack_ids(manager.take().request_ids)) == {1, 99}
    assert manager.tokens == {i: [fakes.expected_token(i, at) for at in range(4)] for i in (1, 2)}
    assert manager.take().in_flight == 4  # the other goes on
    gate.release(10)


def test_work_of_another_version_is_given_back(fakes, started):
    worker, manager = started(fakes.Engine())
    worker.submit([fakes.request(1, tokens=5, version=2), fakes.request(2, tokens=5)], "d1")
    assert list(messages.unpack_ids(manager.take().request_ids)) == [1]
    while manager.take().in_flight:
        pass
    assert list(manager.tokens) == [2]


def test_work_of_other_parameters_of_the_same_version_is_given_back(fakes, started):
    worker, manager = started(fakes.Engine())
    worker.submit([fakes.request(1, tokens=1)], "other")
    assert list(messages.unpack_ids(manager.take().request_ids)) == [1]
    worker.call(lambda engine: engine.load({"of unknown bits": 1}, 1))
    worker.submit([fakes.request(2, tokens=1)], "d1")
    assert list(messages.unpack_ids(manager.take().request_ids)) == [2]
    assert not manager.tokens


def test_loading_gives_back_what_is_held(fakes, started):
    gate = threading.Semaphore(0)
    engine = fakes.Engine(steps=1, gate=gate)
    worker, manager = started(engine)
    worker.submit([fakes.request(1, tokens=20)], "d1")
    manager.take()
    loaded = worker.load({"new": 1}, 2, "d2")
    gate.release()
    loaded.result(PATIENCE_SECONDS)
    manager.take()
    assert manager.tokens == {1: [fakes.expected_token(1, 0)]}
    assert list(messages.unpack_ids(manager.take().request_ids)) == [1]
    assert engine.version == 2 and manager.inbox.empty()


def test_reset_forgets_and_counts_from_nought(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=1, gate=gate))
    worker.submit([fakes.request(1, tokens=20)], "d1")
    manager.take()
    reset = worker.reset()
    gate.release()
    reset.result(PATIENCE_SECONDS)
    assert manager.inbox.empty()
    worker.submit([fakes.request(2, tokens=1)], "d1")
    assert manager.take().sequence == 0
    gate.release()
    manager.take()
    assert list(manager.tokens) == [2]


def test_stop_flushes(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=3, gate=gate))
    worker.submit([fakes.request(1, tokens=20)], "d1")
    manager.take()
    stopped = worker.stop()
    gate.release()
    stopped.result(PATIENCE_SECONDS)
    assert manager.take().in_flight == 0
    assert len(manager.tokens[1]) == 3 and manager.inbox.empty()


def test_an_exception_of_the_engine_is_handed_over(fakes, started):
    engine = fakes.Engine()
    worker, _ = started(engine)
    engine.error = ZeroDivisionError("in the engine")
    worker.submit([fakes.request(1, tokens=5)], "d1")
    assert worker.failure.exception(PATIENCE_SECONDS) is engine.error


def test_giving_up_on_an_answer_does_not_harm_the_worker(fakes, started):
    worker, manager = started(fakes.Engine())
    assert not worker.load({}, 2, "d2").cancel()
    worker.submit([fakes.request(1, tokens=1, version=2)], "d2")
    while manager.take().in_flight:
        pass
    assert len(manager.tokens[1]) == 1


def test_calls_have_the_engine_to_themselves(fakes, started):
    gate = threading.Semaphore(0)
    worker, manager = started(fakes.Engine(steps=1, gate=gate))
    worker.submit([fakes.request(1, tokens=20)], "d1")
    manager.take()
    held, broken = worker.call(lambda engine: engine.held()), worker.call(lambda engine: 1 / 0)
    gate.release()
    assert held.result(PATIENCE_SECONDS) == []
    assert isinstance(broken.exception(PATIENCE_SECONDS), ZeroDivisionError)
    manager.take()
    assert list(messages.unpack_ids(manager.take().request_ids)) == [1]
    worker.load({}, 1, "d1")  # it lives on
    worker.submit([fakes.request(2, tokens=1)], "d1")
    assert manager.take().in_flight == 1
    gate.release()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=12),
    steps=st.integers(1, 8),
    ahead=st.booleans(),
)
def test_no_token_is_lost_or_sampled_twice_in_migrations(fakes, lengths, moves, steps, ahead):
    """Requests move between two workers at any moment; each ends with just its own tokens."""
    workers, managers = [], []
    for _ in range(2):
        worker, manager = EngineWorker(fakes.Engine(steps=steps, ahead=ahead)), Manager()
        worker.start(manager.inbox.put)
        worker.load({}, 1, "d1").result(PATIENCE_SECONDS)
        workers.append(worker)
        managers.append(manager)
    done: dict[int, list[int]] = {i: [] for i in range(len(lengths))}
    place = dict.fromkeys(done, 0)

    def collect(side: int) -> TokenBatch | Released:
        message = managers[side].take()
        for i, tokens in managers[side].tokens.items():
            done[i].extend(tokens)
        managers[side].tokens.clear()
        return message

    workers[0].submit([fakes.request(i, tokens=n) for i, n in enumerate(lengths)], "d1")
    for i, target in moves:
        if i >= len(lengths) or place[i] == target:
            continue
        workers[place[i]].release([i])
        while not isinstance(collect(place[i]), Released):
            pass
        managers[place[i]].released.clear()
        place[i] = target
        if len(done[i]) < lengths[i]:
            request = fakes.request(i, tokens=lengths[i], done=len(done[i]))
            workers[target].submit([request], "d1")
    while any(len(done[i]) < n for i, n in enumerate(lengths)):
        unfinished = next(i for i, n in enumerate(lengths) if len(done[i]) < n)
        collect(place[unfinished])
    for worker in workers:
        worker.stop().result(PATIENCE_SECONDS)
    assert done == {
        i: [fakes.expected_token(i, at) for at in range(n)] for i, n in enumerate(lengths)
    }


def test_questions_after_the_end_are_answered(fakes, started):
    worker, _ = started(fakes.Engine())
    worker.stop().result(PATIENCE_SECONDS)
    worker.submit([fakes.request(1, tokens=5)], "d1")  # nobody waits for an answer
    for question in (worker.load({}, 2, "d2"), worker.reset(), worker.stop()):
        with pytest.raises(WorkerStopped):
            question.result(PATIENCE_SECONDS)


def test_questions_that_meet_a_failure_are_answered(fakes, started):
    gate = threading.Semaphore(0)
    engine = fakes.Engine(gate=gate)
    engine.error = ZeroDivisionError("in the engine")
    worker, manager = started(engine)
    worker.submit([fakes.request(1, tokens=5)], "d1")
    manager.take()  # the dispatch has begun, so the question waits for its end
    before = worker.load({}, 2, "d2")
    gate.release()
    with pytest.raises(ZeroDivisionError):
        worker.failure.result(PATIENCE_SECONDS)
    for question in (before, worker.load({}, 2, "d2")):
        with pytest.raises(ZeroDivisionError, match="in the engine"):
            question.result(PATIENCE_SECONDS)
