"""What the trainer hears of processes that are forked for episodes."""

import asyncio
import signal
import socket
from typing import Any

from rlboost_jax.environments.environment_kind import environment_kind
from rlboost_jax.platform.fork_server import ForkEnded, ForkReport, ForkStarted
from rlboost_jax.platform.frames import frame
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.workers.episode_forks import EpisodeForks
from tests.patience import PATIENCE_SECONDS


class Forker:
    """The process that forks, as the trainer sees it; what it says is said by the test."""

    lives = True
    kind = environment_kind(EnvironmentConfig(name="drawers"))

    def __init__(self) -> None:
        self.end, self.far = socket.socketpair()
        self.end.setblocking(False)

    def say(self, *reports: ForkReport) -> None:
        self.far.sendall(b"".join(map(frame, reports)))


PID = 2**30  # no process has it


def test_an_id_that_is_anothers_by_now_has_its_own_status() -> None:
    """Ids come around in a long run."""

    async def story() -> list[Any]:
        forker, found = Forker(), []
        forks = EpisodeForks(forker)  # type: ignore[arg-type]
        for name, code in enumerate((-signal.SIGKILL, 3, -signal.SIGSEGV)):
            forker.say(ForkStarted(name=str(name), pid=PID), ForkEnded(name=str(name), code=code))
            end, forked = await forks.fork()
            end.close()
            found.append(await forked.how_it_ended())
        assert not forks._forked, "of an episode that is over nothing stays"
        forker.say(ForkStarted(name="3", pid=PID))
        end, forked = await forks.fork()
        forker.far.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while forks.lives:
                await asyncio.sleep(0)
        found.append(await forked.how_it_ended())
        end.close()
        forker.end.close()
        return found

    assert asyncio.run(story()) == [
        ("the environment worker was ended by SIGKILL", True),
        ("the environment worker ended with code 3", False),
        ("the environment worker was ended by SIGSEGV", False),
        ("the environment worker was ended by SIGKILL", True),
    ]
