"""Calls that wait side by side, each in a process of its own."""

import asyncio
import os
import signal
import threading
from concurrent.futures import CancelledError

import pytest

from rlboost_jax.rewards.judge import Judge
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from rlboost_jax.workers.worker_pool import WorkerPool
from tests.rewards.functions_for_tests import fails_awaited, raised_in, raises
from tests.rewards.test_groups import MODULE, WAIT, answered
from tests.rewards.test_judge import alive, sleepers


class Meeting:
    """Calls connect, and are let go `size` at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.most, self.waiting = size, 0, []
        self.met, self.names = [], []
        self.full = threading.Event()
        self._loop = asyncio.new_event_loop()
        starting = asyncio.start_server(self._meet, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(starting)
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _meet(self, reader, writer):
        self.met.append(writer)
        self.names.append((await reader.readline()).decode().strip())
        self.waiting.append(writer)
        self.most = max(self.most, len(self.waiting))
        if len(self.waiting) == self.size:
            self.full.set()
            self.let_go()

    def let_go(self):
        for writer in self.waiting:
            writer.write(b"1.5\n")
            writer.close()
        self.waiting.clear()

    def close(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self):
        self._server.close()
        for writer in self.met:
            writer.close()
        await asyncio.gather(*[w.wait_closed() for w in self.met], return_exceptions=True)


def judge(name: str, *, at_once: int, port: int = 0, **changes) -> Judge:
    function = RewardConfig(
        name=f"{MODULE}:{name}",
        label="x",
        max_concurrent=at_once,
        options={"port": port} if port else {},
        **changes,
    )
    settings = RewardsConfig(memory_mb=200, fallback=-0.5, time_limit_seconds=60)
    return Judge([function], settings, columns=("answer",), seed=0)


def the_pool(asked: Judge) -> WorkerPool:
    (pool,) = asked._open
    assert isinstance(pool, WorkerPool)
    return pool


def test_as_many_wait_at_once_as_are_allowed_and_no_more():
    """None goes on before the fourth has come; twelve in all."""
    meeting = Meeting(4)
    asked = judge("meets", at_once=4, port=meeting.port)
    try:
        futures = [asked.ask(answered(str(n))) for n in range(12)]
        assert [future.result(WAIT).reward for future in futures] == [1.5] * 12
    finally:
        asked.close()
        meeting.close()
    assert meeting.most == 4
    assert sorted(meeting.names, key=int) == [str(n) for n in range(12)]


def test_a_worker_that_is_killed_is_asked_again_in_another():
    meeting = Meeting(3)
    asked = judge("meets", at_once=4, port=meeting.port)
    try:
        futures = [asked.ask(answered(text)) for text in ("a", "b")]
        while len(meeting.waiting) < 2:
            assert not any(future.done() for future in futures)
        meeting.waiting.clear()  # theirs end with it
        os.kill(the_pool(asked).pids[0], signal.SIGKILL)
        futures.append(asked.ask(answered("c")))
        assert [future.result(WAIT).reward for future in futures] == [1.5] * 3
        assert meeting.names[2:4] != ["c", "c"] and sorted(meeting.names) == [*"aabbc"]
    finally:
        asked.close()
        meeting.close()


def test_nothing_depends_on_what_runs_beside():
    texts = [f"response {n}" for n in range(6)]
    seen = []
    for at_once, order in ((1, texts), (6, texts[::-1])):
        asked = judge("both", at_once=at_once)
        futures = {text: asked.ask(answered(text)) for text in order}
        seen.append([futures[text].result(WAIT).reward for text in texts])
        asked.close()
    assert seen[0] == seen[1] and len(set(seen[0])) == 6
    assert all(1 < value < 2 for value in seen[0]), "each is the first call that it knows of"


def test_a_failure_costs_its_own_call():
    asked = judge("fails_awaited", at_once=8)
    faults = {
        "raise": "KeyError: 'no such thing'" + raised_in(raises),
        "crash": "was ended by SIGSEGV",
        "leave": "ended its process",
        "cancel": "CancelledError: " + raised_in(fails_awaited, 4),
        "nan": "returned nan",
        "allocate": "MemoryError: more than rewards.memory_mb",
        "fine": "",
    }
    futures = {text: asked.ask(answered(text)) for text in faults}
    found = {text: future.result(WAIT) for text, future in futures.items()}
    asked.close()
    assert {text: v.faults.get("x", "") for text, v in found.items()} == faults
    assert {text: v.reward for text, v in found.items()} == {
        text: -0.5 if fault else 1.0 for text, fault in faults.items()
    }


def test_what_takes_too_long_is_ended_with_all_that_it_started(patient):
    before = sleepers()
    asked = judge("fails_awaited", at_once=2, time_limit_seconds=1.5)
    found = [f.result(WAIT) for f in [asked.ask(answered(t)) for t in ("hang", "children")]]
    assert [dict(v.faults) for v in found] == [{"x": "took longer than 1.5 s"}] * 2
    asked.close()
    assert sleepers() <= before


def test_groups_may_wait_side_by_side_too():
    asked = judge("shortest", at_once=3, per="group")
    groups = [[answered(text) for text in ("7", "seven", f"{n}" * n)] for n in (1, 2, 3)]
    futures = [asked.ask_group(group, [asked.ask(a) for a in group]) for group in groups]
    found = [[v.reward for v in future.result(WAIT)] for future in futures]
    asked.close()
    assert found == [[11.0, 0.0, 1.0], [12.0, 0.0, 1.0], [12.0, 0.0, 1.0]]


@pytest.mark.parametrize("running", [True, False])
def test_closing_ends_everything(running, patient):
    before = sleepers()
    asked = judge("fails_awaited", at_once=1, time_limit_seconds=600.0)
    pending = [asked.ask(answered("children")) for _ in range(2 * running)]
    while running and len(sleepers() - before) < 2:
        assert not any(future.done() for future in pending)
    worker = the_pool(asked).pids[0]
    asked.close()
    assert all(future.done() for future in pending)
    assert not alive([worker]) and sleepers() <= before
    assert not asked.sees_groups
    with pytest.raises(CancelledError):
        asked.ask(answered("fine")).result(0)
