"""Environments in processes of their own: hundreds at once, and whatever one of them does."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.environments.hosted import Live
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.environments.runner import RememberedCalls
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.workers import episode_forks
from rlboost_jax.workers.worker_kind import GRACE_SECONDS
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost
from tests.patience import PATIENCE_SECONDS
from tests.processes import living

HERE = "tests.environments.environments_for_tests"


def settings(name: str, **changes: Any) -> EnvironmentConfig:
    config = EnvironmentConfig(name=f"{HERE}:{name}", workers=2, memory_mb=256)
    return replace(config, **changes)


def in_pool(
    config: EnvironmentConfig,
    story: Callable[[WorkerPool], Awaitable[Any]],
    *,
    sandbox_required: bool = True,
    grace_seconds: float = GRACE_SECONDS,
    **options: Any,
) -> Any:
    kind = environment_kind(config, sandbox_required=sandbox_required, grace_seconds=grace_seconds)

    async def run() -> Any:
        pool = WorkerPool(kind, **options)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pool.start()
                return await story(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forker may be slow to say how a process ended."""
    monkeypatch.setattr(episode_forks, "STATUS_SECONDS", PATIENCE_SECONDS)


def in_time(
    config: EnvironmentConfig, story: Callable[[WorkerPool], Awaitable[Any]], **options: Any
) -> Any:
    """Run a story with a second a call, or more where this machine is slow now."""
    seconds = 1.0
    while True:
        try:
            return in_pool(replace(config, time_limit_seconds=seconds), story, **options)
        except Lost as lost:
            late = "took longer" in str(lost) or "did not answer" in str(lost)
            if not late or seconds > PATIENCE_SECONDS / 10:
                raise
            seconds *= 4


def turn(text: str, index: int = 0) -> Turn:
    return Turn(index=index, tokens=(1,), text=text)


async def opened(pool: WorkerPool, seed: int = 0, **example: Any) -> Live:
    live = await Live.open(pool, RememberedCalls())
    await live.reset({"index": 1, **example}, seed)
    return live


async def said(live: Live, text: str) -> Any:
    return (await live.take(turn(text), "t")).step.observation


def test_many_episodes_take_turns_side_by_side() -> None:
    """One after the other they would take 150 s, which is more than anybody waits."""

    async def story(pool: WorkerPool) -> list[Any]:
        async def episode(seed: int) -> Any:
            live = await Live.open(pool, RememberedCalls())
            first = await live.reset({"index": seed}, seed)
            taken = await live.take(turn("", index=seed + 5), "t")
            live.close()
            return (*first.said.observation, *taken.step.observation)

        return await asyncio.gather(*(episode(seed) for seed in range(300)))

    found = in_pool(settings("Waiting", options={"seconds": 0.5}), story)
    assert found == [(seed, 2, seed + 5, 4) for seed in range(300)]


def test_what_is_said_and_asked_comes_through_as_it_is() -> None:
    async def story(pool: WorkerPool) -> Any:
        live = await Live.open(pool, RememberedCalls())
        first = await live.reset({"index": 7}, 3)
        taken = await live.take(turn("end"), "t")
        return first.said.observation, taken.step

    first, step = in_pool(settings("Echo", options={"mark": "#"}), story)
    assert first == "#7 3"
    assert (step.observation, step.reward, step.done) == ("3 1 end", 0.5, True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fails", {"a": 1}, "makes nothing of environment.options: ValueError: not with {'a': 1}"),
        ("number", {}, "makes int, which has no reset"),
        ("Ecko", {}, "did you mean 'Echo'?"),
        ("Echo", {"mark": 3}, "mark is 3: expected `str`, got `int`"),
    ],
)
def test_a_mistake_is_known_before_the_first_episode(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        in_pool(settings(name, options=options), opened)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("does", "message", "blame"),
    [
        ("raise", "step: LookupError: of mine", "own"),
        ("exit", "ended with code 3", "own"),
        ("crash", "ended by SIGSEGV", "own"),
        ("kill", "ended by SIGKILL", "outside"),
        ("memory", "MemoryError", "own"),
        ("hang", "took longer than ", "own"),
    ],
)
@pytest.mark.parametrize("isolation", ["shared", "episode"])
def test_whatever_an_environment_does_is_its_own_loss(
    does: str, message: str, blame: str, isolation: Any
) -> None:
    """The episode beside it, if it is lost, is not blamed, and can be made again."""

    async def story(pool: WorkerPool) -> Lost:
        beside, live = await opened(pool), await opened(pool)
        with pytest.raises(Lost) as raised:
            await said(live, does)
        again = await opened(pool)
        assert (await said(again, "")).endswith(" 1")
        if isolation == "episode":
            assert (await said(beside, "")).endswith(" 1")
        return raised.value

    config = settings("Misbehaves", workers=1, isolation=isolation)
    lost = (in_time if does == "hang" else in_pool)(config, story)
    assert message in str(lost) and lost.blame == blame


def test_of_several_at_work_in_a_process_that_ends_nobody_is_blamed() -> None:
    async def story(pool: WorkerPool) -> list[Any]:
        one, other = await opened(pool), await opened(pool)
        return await asyncio.gather(said(one, "hang"), said(other, "crash"), return_exceptions=True)

    lost = in_pool(settings("Misbehaves", workers=1), story)
    assert [each.blame for each in lost] == ["shared", "shared"]


def test_an_episode_that_is_to_be_alone_has_a_process_of_its_own() -> None:
    async def story(pool: WorkerPool) -> list[str]:
        shared = [await opened(pool) for _ in range(3)]
        alone = await Live.open(pool, RememberedCalls(), alone=True)
        await alone.reset({}, 0)
        pids = [(await said(live, "")).split()[0] for live in (*shared, alone)]
        pid = int(pids[-1])
        alone.close()
        assert pid not in pool.pids, "it goes with its episode"
        return pids

    *shared, alone = in_pool(settings("Misbehaves", workers=1), story)
    assert len(set(shared)) == 1 and alone not in shared


def test_a_worker_with_a_thread_that_is_stuck_gets_no_more_episodes() -> None:
    async def story(pool: WorkerPool) -> None:
        beside, live = await opened(pool), await opened(pool)
        before = (await said(beside, "")).split()[0]
        with pytest.raises(Lost, match="took longer"):
            await said(live, "hang")
        assert (await said(beside, "")).split() == [before, "2"], "what it has goes on"
        again = await opened(pool)
        assert (await said(again, "")).split()[0] != before
        assert int(before) in pool.pids
        beside.close()
        assert int(before) not in pool.pids

    in_time(settings("Misbehaves", workers=1), story)


@pytest.mark.parametrize("name", ["Misbehaves", "Blocking"])
def test_a_worker_that_does_not_answer_is_ended(name: str) -> None:
    async def story(pool: WorkerPool) -> None:
        live = await opened(pool)
        try:
            await said(live, "freeze")
        except Lost as lost:
            if "took longer" in str(lost):
                raise  # before it has frozen
            assert "did not answer" in str(lost)
            return
        raise AssertionError("it answers")

    options = {"seconds": 0} if name == "Blocking" else {}
    in_time(settings(name, workers=1, options=options), story, grace_seconds=1.0)


@pytest.mark.parametrize("isolation", ["shared", "episode"])
def test_processes_are_killed_at_any_moment_and_others_take_their_place(isolation: Any) -> None:
    """An episode that is made again with the same example, seed and turns says the same."""

    async def story(pool: WorkerPool) -> int:
        lost = answered = 0

        async def turn_of(live: Live, text: str) -> str:
            nonlocal answered
            found = await said(live, text)
            answered += 1
            if answered % 25 == 0:  # a time between kills would be too short on some machine
                with contextlib.suppress(ProcessLookupError):  # it is on its way already
                    os.kill(pool.pids[0], signal.SIGKILL)
            return found

        async def episode(seed: int) -> list[str]:
            nonlocal lost
            while True:
                try:
                    live = await Live.open(pool, RememberedCalls())
                    first = await live.reset({"index": 0}, seed)
                    found = [first.said.observation]
                    found += [await turn_of(live, text) for text in "abcdefgh"]
                    live.close()
                    return found
                except Lost as error:
                    assert error.blame == "outside", error
                    lost += 1

        while lost < 5:
            found = await asyncio.gather(*(episode(seed) for seed in range(20)))
            for seed, said_ in enumerate(found):
                assert said_ == [
                    f"0 {seed}",
                    *(f"{seed} {n + 1} {t}" for n, t in enumerate("abcdefgh")),
                ]
        return lost

    assert in_pool(settings("Echo", isolation=isolation), story) >= 5


def test_a_call_that_was_carried_out_as_its_process_died_is_not_carried_out_again(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"

    async def story(pool: WorkerPool) -> str:
        ledger = RememberedCalls()
        live = await Live.open(pool, ledger)
        await live.reset({}, 0)
        with pytest.raises(Lost):
            await live.take(turn("note one die"), "t0")
        live = await Live.open(pool, ledger)
        await live.reset({}, 0)
        return (await live.take(turn("note one die"), "t0")).step.observation

    assert in_pool(settings("Misbehaves", options={"log": str(log)}), story) == (
        "noted one noted die"
    )
    assert sorted(log.read_text().splitlines()) == ["t0.0 one", "t0.1 die"]


def test_a_process_for_each_episode_keeps_global_random_states_apart() -> None:
    async def story(pool: WorkerPool) -> list[Any]:
        lives = [await opened(pool, seed=5) for _ in range(3)]
        return [await said(live, "") for live in lives]

    found = in_pool(settings("Global", isolation="episode"), story)
    assert len(set(found)) == 1
    assert len(set(in_pool(settings("Global", workers=1), story))) == 3, "as it is when shared"


def test_what_is_printed_goes_nowhere_and_holds_nobody_up(capfd: Any) -> None:
    async def story(pool: WorkerPool) -> None:
        assert (await said(await opened(pool), "print")).endswith(" 1")

    in_pool(settings("Misbehaves"), story)
    assert len(capfd.readouterr().err) < 10**5


def test_none_outlives_its_pool() -> None:
    async def story(pool: WorkerPool) -> list[int]:
        await opened(pool)
        return list(pool.pids)

    for isolation in ("shared", "episode"):
        pids = in_pool(settings("Misbehaves", isolation=isolation), story)
        assert pids
        end = time.monotonic() + PATIENCE_SECONDS
        while {each.pid for each in living()} & set(pids):  # a fork's last moment is the kernel's
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("isolation", ["shared", "episode"])
def test_programs_of_a_tool_do_not_keep_a_lost_worker_from_being_missed(isolation: Any) -> None:
    """One that it has started lives on with all files that it was given."""

    async def story(pool: WorkerPool) -> str:
        live = await opened(pool)
        (pid,) = pool.pids
        left = int((await said(live, "start")).split()[-1])
        taking = asyncio.create_task(said(live, "wait"))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        try:
            with pytest.raises(Lost) as lost:
                await taking
            os.kill(left, 0)  # it is there yet
        finally:
            os.kill(left, signal.SIGKILL)
        return lost.value.blame

    assert in_pool(settings("Starts", isolation=isolation, workers=1), story) == "outside"


def test_tools_that_run_code_know_whether_a_sandbox_is_required() -> None:
    async def story(pool: WorkerPool) -> str:
        return await said(await opened(pool), "sandbox")

    assert in_pool(settings("Starts"), story) == "required"
    assert in_pool(settings("Starts"), story, sandbox_required=False) == "best_effort"


def test_token_ids_are_arrays_on_both_sides() -> None:
    async def story(pool: WorkerPool) -> Any:
        live = await Live.open(pool, RememberedCalls())
        return (await live.reset({"index": 0}, 9)).said.observation

    found = in_pool(settings("Waiting", options={"seconds": 0.0}), story)
    np.testing.assert_array_equal(found, np.array([9, 2], np.int32))
