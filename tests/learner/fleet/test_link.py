"""The trainer's link, against a manager that follows a script."""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from rlboost_jax import messages
from rlboost_jax.learner.fleet import link as fleet_link
from rlboost_jax.learner.fleet.link import (
    DISK_TIMES,
    ManagerLink,
    ManagerLost,
    ManagerRefused,
    OtherRelease,
    StepTooLarge,
    _decoded,
)
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.sequences.identities import Batch, Work
from tests.endpoints import endpoint
from tests.patience import PATIENCE_SECONDS

HELLO = messages.TrainerHello(run_id="run", window=None)
WINDOW = messages.WindowState(seconds=1.0, memory={}, instance_cap=3)
WELCOME = messages.TrainerWelcome(window=WINDOW, announces_lists=True)


def begin_batch(num_tokens: int = 3, batch: int = 7, version: int = 7) -> messages.BeginBatch:
    sampling = messages.Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4, stop_ids=())
    prompt = messages.PromptRequest(prompt=0, tokens=bytes(4 * num_tokens))
    return messages.BeginBatch(
        batch=batch,
        version=version,
        params_digest="d",
        seed=0,
        group_size=1,
        sampling=sampling,
        prompts=(prompt,),
    )


class Script:
    """Answers each kind of message with what `answers` has for it; notes what it heard."""

    def __init__(self) -> None:
        self.answers: dict[type, messages.ToTrainer] = {messages.TrainerHello: WELCOME}
        self.heard: list[type] = []
        self.numbers: list[int | None] = []  # of versions and batches
        self.replies: list[bytes] = []  # tokens of `Answer`s
        self.dials = 0
        self.status = 101
        self.hang_up_on: type | None = None  # once
        self.dies_of: type | None = None  # once: without a word

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.dials += 1
        if self.status != 101:
            return web.Response(status=self.status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            if frame.type is not WSMsgType.BINARY:
                break
            message = messages.decode_trainer(frame.data)
            self.heard.append(type(message))
            manifest = getattr(message, "manifest", None)
            self.numbers.append(manifest.version if manifest else getattr(message, "batch", None))
            if isinstance(message, messages.Answer):
                self.replies.append(message.tokens)
            if type(message) is self.dies_of:
                self.dies_of = None
                assert request.transport is not None
                request.transport.abort()
                break
            if type(message) is self.hang_up_on:
                self.hang_up_on = None
                break
            answer = self.answers.get(type(message))
            if answer is not None:
                await socket.send_bytes(messages.encode(answer))
            if isinstance(answer, messages.RequestRefused) or isinstance(message, messages.EndRun):
                break
        await socket.close(message=b"as the script says")
        return socket


@pytest.fixture(autouse=True)
def heard_out(monkeypatch) -> None:
    """A manager may take its time to hang up."""
    monkeypatch.setattr(fleet_link, "END_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def script() -> Script:
    return Script()


@contextlib.contextmanager
def linked(
    script, kind=ManagerLink, locate=lambda found: found(), **options
) -> Iterator[ManagerLink]:
    options.setdefault("answer_seconds", PATIENCE_SECONDS)
    thread = EventLoopThread()
    app = web.Application()
    app.router.add_get("/trainer", script.serve)
    server = TestServer(app)
    thread.run(server.start_server(), PATIENCE_SECONDS)
    there = f"{server.host}:{server.port}"
    link = kind(thread, locate=lambda: locate(lambda: endpoint(there, "token")), **options)
    try:
        yield link
    finally:
        link.end("the test is over", over=True)
        thread.run(server.close(), PATIENCE_SECONDS)
        thread.close()


@pytest.fixture
def link(script) -> Iterator[ManagerLink]:
    with linked(script) as link:
        yield link


def test_a_refused_step_is_reported_and_not_asked_for_again(link, script):
    script.answers[messages.BeginBatch] = messages.RequestRefused(reason="prompt 0 fits no slot")
    link.connect(HELLO)
    link.begin_batch(begin_batch())
    with pytest.raises(ManagerRefused, match="refused: prompt 0 fits no slot"):
        link.receive(PATIENCE_SECONDS)
    assert link.end("over", over=True) is False  # nobody is there to hear it
    assert script.heard == [messages.TrainerHello, messages.BeginBatch] and script.dials == 1


def test_a_refused_trainer_is_sent_the_reason(link, script):
    script.answers[messages.TrainerHello] = messages.RequestRefused(
        reason="run 'a' is not the run 'b'"
    )
    with pytest.raises(ManagerRefused, match="run 'a' is not the run 'b'"):
        link.connect(HELLO)


class WaitsOnceRefused(ManagerLink):
    def _next(self, seconds):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._trouble.startswith("403"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return super()._next(seconds)


def test_no_welcome_names_what_was_in_the_way(script, monkeypatch):
    monkeypatch.setattr(fleet_link, "END_SECONDS", 0.0)  # nobody will hear of the end
    script.status = 403
    with (
        linked(script, WaitsOnceRefused, answer_seconds=0.5) as link,
        pytest.raises(ManagerLost, match=r"no welcome from the manager in 0\.5 s: 403"),
    ):
        link.connect(HELLO)


def test_a_manager_that_announces_no_lists_is_of_another_release(link, script):
    script.answers[messages.TrainerHello] = messages.TrainerWelcome(window=WINDOW)
    with pytest.raises(OtherRelease, match=r"announces no lists .* the same command goes on"):
        link.connect(HELLO)


def test_a_reward_that_arrives_wakes_who_waits_for_rollouts_and_nobody_else(link, script):
    link.wake()
    link.connect(HELLO)
    link.wake()
    assert link.receive(PATIENCE_SECONDS) is None
    names = messages.BatchReport.__struct_fields__
    report = messages.BatchReport(**{**dict.fromkeys(names, 0), "batch": 7, "window": WINDOW})
    script.answers[messages.BatchTrained] = report
    link.wake()
    trained = messages.BatchTrained(batch=7, train_wait_seconds=0.0, train_seconds=0.0)
    assert link.trained(trained).batch == 7


def test_a_manager_has_its_time_to_answer_once_it_is_found(script):
    """Until then `locate` has a patience of its own: a long journal takes long to read."""
    now, looks, enough = 0.0, 0, threading.Event()

    class Looks(ManagerLink):
        def receive(self, timeout=None):
            nonlocal now, looks
            if not enough.is_set():
                now += 10.0
                looks += 1
                if looks > 9:
                    enough.set()
                return None
            return super().receive(timeout)

    def locate(found):
        assert enough.wait(PATIENCE_SECONDS)
        return found()

    with linked(script, Looks, locate, answer_seconds=30.0, clock=lambda: now) as link:
        assert link.connect(HELLO) == WELCOME
    assert now >= 100.0


def test_a_signal_that_another_thread_was_given_ends_the_wait(link):
    """As does one that comes just before the wait begins: Python's lock would not notice either."""

    class Asked(Exception):
        pass

    def ask(number, frame):
        raise Asked

    def send():
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ask)
    threading.Timer(0.1, link.wake).start()
    assert link.receive() is None, "it can be woken"
    sender = threading.Timer(0.1, send)
    try:
        with pytest.raises(Asked):  # here, too, if this thread is late
            sender.start()
            link.receive()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


class Waits(ManagerLink):
    """For its welcome as long as that takes."""

    def connect(self, hello):
        seconds, self._answer_seconds = self._answer_seconds, PATIENCE_SECONDS
        welcome = super().connect(hello)
        self._answer_seconds = seconds
        return welcome


def test_no_report_names_what_was_in_the_way(script):
    trained = messages.BatchTrained(batch=7, train_wait_seconds=0.0, train_seconds=0.0)
    with linked(script, Waits, answer_seconds=0.5 / DISK_TIMES) as link:
        link.connect(HELLO)
        with pytest.raises(ManagerLost, match=r"no report of batch 7 in 0\.5 s: no answer"):
            link.trained(trained)


def test_a_step_that_fits_no_message_is_not_sent(script):
    size = len(messages.encode(begin_batch()))
    with linked(script, most_bytes=size) as link:
        link.connect(HELLO)
        link.begin_batch(begin_batch())  # this one just fits
        with pytest.raises(StepTooLarge, match=f"batch 7 take {size + 4:,} .*prompts_per_step"):
            link.begin_batch(begin_batch(num_tokens=4))
        assert link.end("over", over=True) is True
    assert script.heard == [messages.TrainerHello, messages.BeginBatch, messages.EndRun]


def test_a_stream_that_is_cut_is_dialled_again_with_all_that_counts(link, script):
    manifest = messages.Manifest(version=7, directory="", params_digest="d", list_sha256="list")
    link.connect(HELLO)
    link.publish(manifest)
    script.hang_up_on = messages.ExtendBatch
    closed = messages.WindowClosed(batch=7, seconds=0.0, reason="begun")
    script.answers[messages.ExtendBatch] = closed
    link.begin_batch(begin_batch())
    link.extend_batch(messages.ExtendBatch(batch=7, prompts=()))
    assert link.receive(PATIENCE_SECONDS) == closed
    said = [messages.TrainerHello, messages.Publish, messages.BeginBatch, messages.ExtendBatch]
    assert script.heard == 2 * said and script.dials == 2
    assert link.end("over", over=True) is True


def test_a_manager_that_is_killed_by_the_goodbye_is_followed_by_one_that_is_told_the_same(
    link, script
):
    link.connect(HELLO)
    script.dies_of = messages.EndRun
    assert link.end("over", over=True) is True
    assert script.heard == 2 * [messages.TrainerHello, messages.EndRun] and script.dials == 2


def test_an_answer_is_said_on_the_stream_on_which_it_was_asked_or_nowhere(script):
    """The next manager may ask of the same turn what another has sampled."""
    work = Work(seed=0, batch=Batch(7), prompt=0, sample=0)
    question = messages.Parked(
        work=work, attempt=0, turn=0, tokens=bytes(4), runs=(), logprobs=bytes(4)
    )
    script.answers[messages.BeginBatch] = question
    asked: queue.Queue[int] = queue.Queue()
    with linked(script) as link:
        link.parked = lambda parked, stream: asked.put(stream)
        link.connect(HELLO)
        link.begin_batch(begin_batch())
        first = asked.get(timeout=PATIENCE_SECONDS)
        script.hang_up_on = messages.BatchCommitted
        link.committed(0)
        second = asked.get(timeout=PATIENCE_SECONDS)
        for stream, tokens in ((first, b"late"), (second, b"said"), (first, b"late")):
            answer = messages.Answer(work=work, attempt=0, turn=0, tokens=tokens, over=True)
            link.answer(answer, stream)
        closed = messages.WindowClosed(batch=7, seconds=0.0, reason="begun")
        script.answers[messages.ExtendBatch] = closed
        link.extend_batch(messages.ExtendBatch(batch=7, prompts=()))
        assert link.receive(PATIENCE_SECONDS) == closed
        assert script.replies == [b"said"]


def test_of_open_batches_all_is_said_again_and_of_one_that_is_over_nothing(script):
    """A lag of one keeps the two newest versions and their two batches open."""
    with linked(script, versions=2) as link:
        link.connect(HELLO)
        for number in range(3):
            link.publish(
                messages.Manifest(
                    version=number, directory="", params_digest="d", list_sha256="list"
                )
            )
            link.begin_batch(begin_batch(batch=number, version=max(0, number - 1)))
            link.extend_batch(messages.ExtendBatch(batch=number, prompts=()))
        names = messages.BatchReport.__struct_fields__
        report = messages.BatchReport(**{**dict.fromkeys(names, 0), "window": WINDOW})
        script.answers[messages.BatchTrained] = report
        link.trained(messages.BatchTrained(batch=0, train_wait_seconds=0.0, train_seconds=0.0))
        script.numbers.clear()
        script.hang_up_on = messages.BatchCommitted
        closed = messages.WindowClosed(batch=2, seconds=0.0, reason="begun")
        script.answers[messages.ExtendBatch] = closed
        link.committed(0)
        assert link.receive(PATIENCE_SECONDS) == link.receive(PATIENCE_SECONDS) == closed
    committed, *again = script.numbers[:8]
    assert (committed, again) == (0, [None, 1, 2, 1, 1, 2, 2])


def test_what_comes_while_an_account_is_waited_for_is_received_next(script):
    """It is of batches that are open still, in the order in which it came."""
    early = [messages.WindowClosed(batch=n, seconds=0.0, reason="begun") for n in (8, 9)]
    names = messages.BatchReport.__struct_fields__
    report = messages.BatchReport(**{**dict.fromkeys(names, 0), "batch": 7, "window": WINDOW})
    with linked(script) as link:
        link.connect(HELLO)
        for message in (*early, report):
            link._inbox.put(message)
        trained = messages.BatchTrained(batch=7, train_wait_seconds=0.0, train_seconds=0.0)
        assert link.trained(trained) == report
        assert [link.receive(PATIENCE_SECONDS) for _ in early] == early


def test_a_wait_ends_however_short_it_is(script):
    """Python 3.11 has a queue whose wait never ends if its time is over before it has looked."""
    with linked(script) as link:
        link.connect(HELLO)

        def wait():
            for _ in range(30_000):
                link.wake()
                assert link.receive(PATIENCE_SECONDS) is None
                assert link.receive(5e-7) is None
            done.set()

        done = threading.Event()
        threading.Thread(target=wait, daemon=True).start()
        assert done.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("frame", [["BatchReport", 0, "x"], ["Unheard", 1], {"a": 1}])
def test_a_manager_of_another_release_costs_a_line_and_no_traceback(frame: object) -> None:
    with pytest.raises(OtherRelease, match=r"another release .* the same command goes on") as said:
        _decoded(msgspec.msgpack.encode(frame))
    assert "\n" not in str(said.value)
