"""Launcher of servers on the cheapest cloud by SkyPilot: one cluster of one node for each.

A cluster and not a managed job: SkyPilot starts a job anew where its machine was taken, under the
nonce of one that is over, and keeps a controller's machine for jobs. Here the manager asks for
another one. A cluster takes itself down once its server has ended, even without a manager.

Clusters are found by their names. Nothing here waits for SkyPilot in a thread: a request is
handed in, and asked after.
"""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import ANY_POOL, Rendezvous
from rlboost_jax.providers.launcher import Job, JobState, LaunchFailed
from rlboost_jax.providers.skypilot_task import cluster_of, tag_of, task_of
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.launchers_config import names_of
from rlboost_jax.settings.skypilot_config import INSTALL
from rlboost_jax.trust.credentials import packed

MOST_TASK_BYTES: Final = 2**20  # of a file
CALLS: Final = 20  # at a time
LOOK_SECONDS: Final = 2.0
LINE: Final = 300  # characters of a reason
# INIT of a cluster that was up: its machine is gone or broken, and it never comes back by itself.
STATES: Final[Mapping[str, JobState]] = {"INIT": "waiting", "STOPPED": "waiting", "UP": "running"}
DONE: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
# SkyPilot's own errors after which there is no cluster.
SURE: Final = (
    *("ResourcesUnavailableError", "NoCloudAccessError", "InvalidClusterNameError"),
    *("NotSupportedError", "InvalidSkyPilotConfigError"),
)
GONE: Final = ("ClusterDoesNotExist", "ClusterNotUpError")


class SkyFailed(LaunchFailed):
    """A request to SkyPilot failed.

    Attributes:
        kind: class of SkyPilot's error.
    """

    def __init__(self, reason: str, *, kind: str, sure: bool) -> None:
        super().__init__(reason, sure=sure)
        self.kind = kind


class SkyPilotLauncher:
    """Launcher of SkyPilot clusters.

    Args:
        look_seconds: from one question after a request to the next.

    Raises:
        ConfigError: skypilot is not installed.
    """

    def __init__(
        self, fleet: FleetConfig, rendezvous: Rendezvous, *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        try:
            self._sdk: Any = importlib.import_module("sky")
        except ImportError:
            reason = f'fleet.provider "skypilot" needs skypilot; {INSTALL}'
            raise ConfigError(reason) from None
        self._sky, self._rendezvous = fleet.skypilot, rendezvous
        self._price, self._look_seconds = fleet.price_per_hour, look_seconds
        self.pools = names_of(fleet.skypilot.infra)
        self._threads = ThreadPoolExecutor(CALLS, thread_name_prefix="skypilot")
        self._downs: dict[str, str] = {}  # requests that take clusters down, by cluster

    async def start(self, name: str, nonce: str, pool: str) -> None:
        cluster = cluster_of(self._rendezvous.run_id, name, nonce)
        try:
            task = await self._call(self._task, name, nonce, pool)
        except LaunchFailed as error:
            raise LaunchFailed(str(error), sure=True) from None
        request = await self._call(
            self._sdk.launch,
            task,
            cluster_name=cluster,
            down=True,
            idle_minutes_to_autostop=self._sky.idle_minutes,
        )
        try:
            async with asyncio.timeout(self._sky.start_seconds):
                await self._result(request)
        except TimeoutError:
            await self._call(self._sdk.api_cancel, [request])
            raise LaunchFailed(f"not up in {self._sky.start_seconds:g} s") from None

    async def stop(self, job: Job, grace_seconds: float) -> None:
        """Send SIGTERM to the server, whose cluster then takes itself down; or that at once."""
        try:
            if grace_seconds > 0 and job.state == "running":
                await self._result(await self._call(self._sdk.cancel, job.handle, all=True))
                return
            if (under_way := self._downs.get(job.handle)) is not None:
                if await self._status(under_way) not in DONE:
                    return
                del self._downs[job.handle]
                await self._result(under_way)
            self._downs[job.handle] = await self._call(self._sdk.down, job.handle)
        except SkyFailed as error:
            if error.kind not in GONE:
                raise

    async def list(self) -> Sequence[Job]:
        """List clusters; SkyPilot asks the clouds for their state if machines may vanish."""
        request = await self._call(
            self._sdk.status, refresh=self._sdk.StatusRefreshMode.AUTO, all_users=False
        )
        try:
            async with asyncio.timeout(self._sky.timeout_seconds):
                found = await self._result(request)
        except TimeoutError:
            raise LaunchFailed(f"no list in {self._sky.timeout_seconds:g} s") from None
        jobs = [job for each in found if (job := _job(each)) is not None]
        there = {job.handle for job in jobs}
        self._downs = {name: request for name, request in self._downs.items() if name in there}
        return jobs

    def _task(self, name: str, nonce: str, pool: str) -> Any:
        text = read_text(Path(self._sky.task), MOST_TASK_BYTES, "a task")
        own = importlib.import_module("yaml").safe_load(text)
        if not isinstance(own, dict):
            raise ValueError(f"{self._sky.task} holds no task")
        task = task_of(
            self._sky,
            own,
            infra=self.pools if pool == ANY_POOL else (pool,),
            name=name,
            nonce=nonce,
            manager=self._rendezvous.address,
            join=packed(self._rendezvous.join),
            price_per_hour=self._price,
        )
        return self._sdk.Task.from_yaml_config(task)

    async def _result(self, request: str) -> Any:
        """Wait for a request and return its result. Raises SkyFailed with its error."""
        while await self._status(request) not in DONE:
            await asyncio.sleep(self._look_seconds)
        return await self._call(self._sdk.get, request)

    async def _status(self, request: str) -> str:
        found = await self._call(self._sdk.api_status, [request])
        if not found:
            reason = "SkyPilot's API server knows nothing of a request; was it started anew?"
            raise SkyFailed(reason, kind="Lost", sure=False)
        return str(found[0].status)

    async def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call SkyPilot in a thread, with a time limit; its exceptions become SkyFailed."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(self._sky.timeout_seconds):
                return await run(self._threads, lambda: function(*arguments, **named))
        except TimeoutError:
            reason = f"SkyPilot did not answer in {self._sky.timeout_seconds:g} s"
            raise SkyFailed(reason, kind="TimeoutError", sure=False) from None
        except Exception as error:  # it has no base class of its own
            kind = type(error).__name__
            reason = " ".join(f"{kind}: {error}".split())[:LINE]
            raise SkyFailed(reason, kind=kind, sure=kind in SURE) from None


def _job(found: Any) -> Job | None:
    """Job of a cluster; None if it is not ours."""
    if (tag := tag_of(found["name"])) is None:
        return None
    run, name, nonce = tag
    return Job(
        handle=found["name"],
        run=run,
        name=name,
        nonce=nonce,
        state=STATES.get(found["status"].name, "running"),
        reason=str(found.get("init_status_reason") or ""),
    )
