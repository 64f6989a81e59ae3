"""Workers that are killed: when, which, and how often."""

import asyncio
import contextlib
import signal

import numpy as np
import pytest

from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.environments.hosted import Live
from rlboost_jax.environments.runner import RememberedCalls
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.workers.worker_chaos import kill_workers
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost
from tests.patience import PATIENCE_SECONDS


class Over(Exception):
    """Enough has been seen."""


def kills(pids, *, count, **options):
    """(seconds, pid) of the first kills."""
    seen, now = [], 0.0

    async def sleep(seconds):
        nonlocal now
        assert seconds >= 0
        now += seconds

    def kill(pid, number):
        assert number == signal.SIGKILL
        seen.append((now, pid))
        if len(seen) == count:
            raise Over
        if pid == 13:
            raise ProcessLookupError

    with pytest.raises(Over):
        asyncio.run(kill_workers(pids, sleep=sleep, kill=kill, **options))
    return seen


def test_they_come_at_the_rate_and_meet_all_alike():
    seen = kills(lambda: [5, 6, 7], count=2000, per_minute=30)
    gaps = np.diff([seconds for seconds, _ in seen])
    assert abs(gaps.mean() - 2.0) < 4 * 2.0 / np.sqrt(len(gaps))  # exponential: deviation = mean
    counts = np.array([sum(pid == each for _, pid in seen) for each in (5, 6, 7)])
    assert (abs(counts - 2000 / 3) < 4 * np.sqrt(2000 * 2 / 9)).all()


def test_they_follow_from_the_seed():
    first, again, other = (
        kills(lambda: [1, 2], count=20, per_minute=6, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_who_is_gone_already_changes_nothing():
    """Nor does it where nobody is there."""
    assert {pid for _, pid in kills(lambda: [13, 14], count=50, per_minute=60)} == {13, 14}
    rounds = iter([[], [9]] * 3)
    assert [pid for _, pid in kills(lambda: next(rounds), count=3, per_minute=60)] == [9] * 3


def test_without_a_rate_nobody_is_killed():
    asyncio.run(kill_workers(lambda: [1], per_minute=0.0))


def test_a_pool_kills_its_own_workers():
    """Until it has lost three, and starts others."""

    async def story():
        config = EnvironmentConfig(name="drawers", workers=1, memory_mb=256)
        pool = WorkerPool(environment_kind(config), chaos_kills_per_minute=600.0)
        met: set[int] = set()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pool.start()
                while len(met) < 4:
                    with contextlib.suppress(Lost):
                        live = await Live.open(pool, RememberedCalls())
                        met.update(pool.pids)
                        await live.reset({"index": 0}, 0)
                    await asyncio.sleep(0.01)
        finally:
            await pool.close()

    asyncio.run(story())
