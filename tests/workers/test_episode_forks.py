"""What the trainer hears of processes that are forked for episodes."""

import asyncio
import signal
import socket
from typing import Any

from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.workers.episode_forks import _RECORD, EpisodeForks
from tests.patience import PATIENCE_SECONDS


class Forker:
    """The process that forks, as the trainer sees it; what it says is said by the test."""

    lives = True
    kind = environment_kind(EnvironmentConfig(name="drawers"))

    def __init__(self) -> None:
        self.end, self.far = socket.socketpair()
        self.end.setblocking(False)

    def say(self, *, ended: bool, status: int = 0) -> None:
        self.far.sendall(_RECORD.pack(ended, 2**30, status))  # an id that no process has


def test_an_id_that_is_anothers_by_now_has_its_own_status() -> None:
    """Also where the end is heard of before the beginning. Ids come around in a long run."""

    async def story() -> list[Any]:
        forker, found = Forker(), []
        forks = EpisodeForks(forker)  # type: ignore[arg-type]
        for status in (signal.SIGKILL, 3 << 8, signal.SIGSEGV):
            early = status == 3 << 8
            for ended in (True, False) if early else (False, True):
                forker.say(ended=ended, status=status)
            end, forked = await forks.fork()
            end.close()
            found.append(await forked.how_it_ended())
        assert not forks._statuses, "of an episode that is over nothing stays"
        forker.far.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while forks.lives:
                await asyncio.sleep(0)
        forker.end.close()
        return found

    assert asyncio.run(story()) == [
        ("the environment worker was ended by SIGKILL", True),
        ("the environment worker ended with code 3", False),
        ("the environment worker was ended by SIGSEGV", False),
    ]
