"""Workers of every kind: they start, vanish, are replaced, and are blamed by one rule."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.environments.environment_frames import Opened, Reset
from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.restarts import Restarts, StartsExhausted
from rlboost_jax.rewards.reward_frames import Outcomes, RewardJob, RewardResponse, RewardSetup
from rlboost_jax.rewards.reward_kind import reward_kind
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.workers.local_workers import WorkersLost
from rlboost_jax.workers.worker_kind import WorkerKind
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost, WorkerSession
from tests.patience import PATIENCE_SECONDS

ENVIRONMENTS = "tests.environments.environments_for_tests"
REWARDS = "tests.rewards.functions_for_tests"
FROZEN_SECONDS = 4.0  # after which a worker that does not answer is killed
SOON = Restarts(first_pause_seconds=0.0)


async def asked_of_environment(session: WorkerSession) -> Any:
    request = Reset(episode=session.number, example={"index": 1}, seed=7)
    return (await session.ask(request, Opened)).said.observation


async def asked_of_function(session: WorkerSession) -> Any:
    response = RewardResponse(completion="four", completion_ids=(), finished=True)
    job = RewardJob(prompt="", responses=(response,), columns={}, number=session.number)
    return (await session.ask(job, Outcomes)).outcomes[0][0].value


def of_environment(module: str = ENVIRONMENTS) -> WorkerKind:
    return environment_kind(EnvironmentConfig(name=f"{module}:Echo", memory_mb=256))


def of_function(module: str = REWARDS) -> WorkerKind:
    setup = RewardSetup(
        functions=(RewardConfig(name=f"{module}:good", time_limit_seconds=PATIENCE_SECONDS),),
        columns=(),
        memory_mb=200,
        sandbox_required=False,
        seed=0,
    )
    return reward_kind(setup, workers=2, sessions=2)


@dataclass(frozen=True)
class Case:
    """A kind of worker.

    Attributes:
        kind: of a module that has its function; by default a sound one.
        ask: makes one request, which is answered with `answer`.
    """

    kind: Callable[..., WorkerKind]
    ask: Callable[[WorkerSession], Awaitable[Any]]
    answer: Any


CASES = {
    "environment": Case(of_environment, asked_of_environment, "1 7"),
    "reward": Case(of_function, asked_of_function, 4.0),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    return request.param


def in_pool(kind: WorkerKind, story: Callable[[WorkerPool], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        pool = WorkerPool(kind, **{"restarts": SOON, **options})
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pool.start()
                return await story(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


def signalled(session: WorkerSession, number: int) -> None:
    os.kill(session._worker.process.pid, number)


def dies_at_first(case: Case, folder: Path, times: int, patch: pytest.MonkeyPatch) -> WorkerKind:
    """Write a module that kills its process the first times that it is imported.

    Its file `imports` gets a letter each time.
    """
    mark = folder / "imports"
    (folder / "dies_at_first.py").write_text(
        "import os, signal\n"
        f"with open({str(mark)!r}, 'a') as file: file.write('x')\n"
        f"if os.path.getsize({str(mark)!r}) <= {times}: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"from {ENVIRONMENTS} import Echo\n"
        f"from {REWARDS} import good\n"
    )
    patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return case.kind("dies_at_first")


@pytest.mark.parametrize("frame", ["none of MessagePack", "longer than allowed", "of another kind"])
def test_a_first_frame_that_is_no_answer_is_a_mistake_of_the_module(
    case: Case, frame: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found our socket, whose number is the last argument."""
    sent = {
        "none of MessagePack": "b'\\x01\\0\\0\\0\\xc1'",
        "longer than allowed": "b'\\xff' * 4",
        "of another kind": "frame(Pong(number=1))",
    }
    (tmp_path / "says_too_much.py").write_text(
        "import os, sys\n"
        "from rlboost_jax.platform.frames import frame\n"
        "from rlboost_jax.workers.worker_kind import Pong\n"
        f"os.write(int(sys.argv[-1]), {sent[frame]})\n"
        f"from {ENVIRONMENTS} import Echo\n"
        f"from {REWARDS} import good\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ConfigError, match=r"says_too_much.*said what is no answer"):
        in_pool(case.kind("says_too_much"), lambda pool: asyncio.sleep(0))


def test_a_worker_that_is_killed_while_it_begins_has_a_successor(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(pool: WorkerPool) -> Any:
        return await case.ask(await pool.open())

    assert in_pool(dies_at_first(case, tmp_path, 3, monkeypatch), story) == case.answer
    assert (tmp_path / "imports").read_text() == "xxxx"


def test_a_worker_that_never_begins_is_abandoned(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(pool: WorkerPool) -> None:
        raise AssertionError("it has not started")

    with pytest.raises(
        StartsExhausted, match="2 times in a row in vain; the last was ended by SIGKILL"
    ):
        few = Restarts(most_starts=2, first_pause_seconds=0.0)
        in_pool(dies_at_first(case, tmp_path, 99, monkeypatch), story, restarts=few)
    assert (tmp_path / "imports").read_text() == "xx"


def test_what_somebody_kills_is_done_again_and_is_nobodys_failure(case: Case) -> None:
    lost = []

    async def story(pool: WorkerPool) -> Any:
        async def killed(session: WorkerSession) -> Any:
            if len(lost) < 3:
                signalled(session, signal.SIGSTOP)
                asking = asyncio.ensure_future(case.ask(session))
                await asyncio.sleep(0)
                signalled(session, signal.SIGKILL)
                try:
                    await asking
                except Lost as error:
                    lost.append(error)
                    raise
            return await case.ask(session)

        return await pool.attempt(killed, attempts=1)

    assert in_pool(case.kind(), story) == case.answer
    assert [error.blame for error in lost] == ["outside"] * 3
    assert all("was ended by SIGKILL" in str(error) for error in lost)


def test_but_not_for_ever(case: Case) -> None:
    async def story(pool: WorkerPool) -> Any:
        async def killed(session: WorkerSession) -> Any:
            signalled(session, signal.SIGKILL)
            return await case.ask(session)

        return await pool.attempt(killed, attempts=1)

    with pytest.raises(StartsExhausted, match="was started 3 times in a row in vain; the last was"):
        few = Restarts(most_starts=3, first_pause_seconds=0.0)
        in_pool(case.kind(), story, restarts=few)


def test_a_frozen_worker_is_killed_and_who_was_at_work_in_it_goes_on_alone(case: Case) -> None:
    lost, processes = [], []

    async def story(pool: WorkerPool) -> Any:
        beside = await pool.open()

        async def frozen(session: WorkerSession) -> Any:
            if not lost:
                processes.append(session._worker.process)
                signalled(session, signal.SIGSTOP)
            try:
                return await case.ask(session), session._worker.alone
            except Lost as error:
                lost.append(error)
                raise

        found = await pool.attempt(frozen, attempts=2)
        with pytest.raises(Lost) as raised:
            await case.ask(beside)
        lost.append(raised.value)
        return found

    kind = replace(case.kind(), workers=1, answer_seconds=FROZEN_SECONDS)
    assert in_pool(kind, story) == (case.answer, True)
    assert not processes[0].lives, "it is over when the pool is"
    assert all("did not answer for 4 s" in str(error) for error in lost)
    assert [error.blame for error in lost] == ["own", "outside"]


def test_no_more_sessions_than_there_is_room_for(case: Case) -> None:
    """Two processes of one each; who comes first is first."""

    async def story(pool: WorkerPool) -> Any:
        sessions = [await pool.open() for _ in range(2)]
        pids = {session._worker.process.pid for session in sessions}
        waiting = [asyncio.ensure_future(pool.open()) for _ in range(3)]
        for place, wanted in enumerate(waiting):
            await asyncio.sleep(0)
            assert not any(each.done() for each in waiting[place:])
            sessions[place].close()
            sessions.append(await wanted)
            assert sessions[-1]._worker.process.pid in pids
        return len(pids), await case.ask(sessions[-1])

    assert in_pool(replace(case.kind(), sessions=1), story) == (2, case.answer)


def test_closing_ends_all_and_leaves_nobody_waiting(case: Case) -> None:
    async def story(pool: WorkerPool) -> Any:
        session = await pool.open()
        signalled(session, signal.SIGSTOP)
        asking = asyncio.ensure_future(case.ask(session))
        waiting = asyncio.ensure_future(pool.open())
        await asyncio.sleep(0)
        signalled(session, signal.SIGCONT)
        pids = pool.pids
        await pool.close()
        found = await asyncio.gather(asking, waiting, return_exceptions=True)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        with pytest.raises(WorkersLost, match="were asked to end"):
            await pool.open()
        return [type(each) for each in found]

    kind = replace(case.kind(), workers=1, sessions=1)
    assert in_pool(kind, story) == [Lost, WorkersLost]


def test_all_are_asked_to_end_before_any_is_waited_for(case: Case) -> None:
    happened = []

    class Slow:
        def __init__(self, name: str) -> None:
            self.process, self.name = self, name

        def end_lost(self, why: str) -> None:
            happened.append(("asked", self.name))
            pool._watch(self.ended(), pool._ending)  # as a worker of this host is

        async def ended(self) -> None:
            happened.append(("awaited", self.name))

    pool = WorkerPool(case.kind())

    async def story() -> None:
        pool._workers += [Slow("a"), Slow("b")]  # type: ignore[list-item]
        await pool.close()

    asyncio.run(story())
    assert happened == [(what, name) for what in ("asked", "awaited") for name in "ab"]
