"""Environments on hosts of their own, by real TLS on the loopback address."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rlboost_jax.environments import environment_frames
from rlboost_jax.environments.environment_kind import (
    FOLDER_OF_HOSTS,
    ROUTE,
    environment_kind,
    kind_of_setup,
)
from rlboost_jax.environments.hosted import Live
from rlboost_jax.environments.runner import RememberedCalls
from rlboost_jax.platform.frames import body_of
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.trust.credentials import Endpoint, read_environment_credentials
from rlboost_jax.workers.remote_workers import JOIN
from rlboost_jax.workers.worker_host import HostRefused, TrainerUnreachable, WorkerHost
from rlboost_jax.workers.worker_kind import WorkerReady
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost
from tests.endpoints import free_port
from tests.environments.test_environment_kind import HERE, opened, said, settings
from tests.patience import PATIENCE_SECONDS


def host_of(
    endpoint: Endpoint, workers: int, patience: float, say: Callable[[str], None]
) -> WorkerHost:
    return WorkerHost(
        endpoint,
        route=ROUTE,
        folder=FOLDER_OF_HOSTS,
        kind_of=kind_of_setup,
        workers=workers,
        patience_seconds=patience,
        say=say,
    )


class Place:
    """A pool that hosts dial, and what opens it."""

    def __init__(self, folder: Path, config: EnvironmentConfig) -> None:
        self.folder, self.notes = folder, list[str]()
        self.address = f"127.0.0.1:{free_port()}"
        self.pool = WorkerPool(environment_kind(config), note=self.notes.append)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            address=self.address, credentials=read_environment_credentials(self.folder / JOIN)
        )

    def host(self, workers: int = 1, *, patience: float = PATIENCE_SECONDS) -> asyncio.Task[None]:
        made = host_of(self.endpoint, workers, patience, self.notes.append)
        return asyncio.create_task(made.run())


Story = Callable[[Place], Awaitable[Any]]


def with_hosts(folder: Path, config: EnvironmentConfig, story: Story) -> Any:
    async def run() -> Any:
        place = Place(folder, config)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await place.pool.listen(place.address, folder)
                await place.pool.start()
                return await story(place)
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await place.pool.close()
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)

    return asyncio.run(run())


def elsewhere(name: str, **changes: Any) -> EnvironmentConfig:
    """All of its workers are of other hosts."""
    return settings(name, **{"workers": 0, **changes})


async def pid_of(live: Live) -> int:
    return int((await said(live, "")).split()[0])


async def lost(awaitable: Awaitable[Any]) -> Lost:
    with pytest.raises(Lost) as raised:
        await awaitable
    return raised.value


def test_episodes_run_where_a_host_has_come_from(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        waiting = [asyncio.create_task(opened(place.pool)) for _ in range(6)]
        await asyncio.sleep(0)  # all of them wait: nobody is there
        place.host(workers=2)
        lives = await asyncio.gather(*waiting)
        pids = [await pid_of(live) for live in lives]
        assert os.getpid() not in pids and not place.pool.pids, "none is of this host's pool"
        for live in lives:
            live.close()

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


def test_a_worker_that_is_killed_there_has_a_successor(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        place.host()
        live = await opened(place.pool)
        pid = await pid_of(live)
        thinking = asyncio.create_task(said(live, "hang"))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        found = await lost(thinking)
        assert found.blame == "outside" and "SIGKILL" in str(found)
        assert await pid_of(await opened(place.pool)) != pid

    with_hosts(tmp_path, elsewhere("Misbehaves", time_limit_seconds=PATIENCE_SECONDS), story)


def test_an_environment_that_ends_its_worker_is_to_blame_there_too(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        place.host()
        found = await lost(said(await opened(place.pool), "crash"))
        assert found.blame == "own"

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


def test_a_host_that_is_gone_costs_its_episodes_and_nobody_is_to_blame(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        host = place.host()
        live = await opened(place.pool)
        thinking = asyncio.create_task(said(live, "hang"))
        await asyncio.sleep(0)
        host.cancel()
        found = await lost(thinking)
        assert found.blame == "outside" and "is gone" in str(found)
        place.host()
        assert (await said(await opened(place.pool), "")).endswith(" 1")

    with_hosts(tmp_path, elsewhere("Misbehaves", time_limit_seconds=PATIENCE_SECONDS), story)


def test_a_host_waits_for_a_trainer_that_comes_back(tmp_path: Path) -> None:
    """At the same address, with the same secrets."""

    async def story(place: Place) -> None:
        place.host()
        await opened(place.pool)
        await place.pool.close()
        again = WorkerPool(environment_kind(elsewhere("Misbehaves")))
        try:
            await again.listen(place.address, place.folder)
            await again.start()
            assert (await said(await opened(again), "")).endswith(" 1")
        finally:
            await again.close()

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


def test_no_two_episodes_share_a_process_where_that_is_asked_for(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        place.host(workers=2)
        pids = []
        for _ in range(2):
            lives = await asyncio.gather(opened(place.pool), opened(place.pool))
            pids += [await pid_of(live) for live in lives]
            for live in lives:
                live.close()
        assert len(set(pids)) == 4

    with_hosts(tmp_path, elsewhere("Misbehaves", isolation="episode"), story)


def test_an_episode_gets_a_host_to_itself(tmp_path: Path) -> None:
    """Once one has nothing else to do; what comes meanwhile leaves it that."""

    async def story(place: Place) -> None:
        place.host()
        first = await opened(place.pool)
        wanted = asyncio.create_task(Live.open(place.pool, RememberedCalls(), alone=True))
        await asyncio.sleep(0.01)
        assert not wanted.done()
        pid = await pid_of(first)
        first.close()
        alone = await wanted
        await alone.reset({"index": 0}, 0)
        assert await pid_of(alone) == pid
        other = asyncio.create_task(opened(place.pool))
        await asyncio.sleep(0.01)
        assert not other.done(), "it has the only worker to itself"
        alone.close()
        assert await pid_of(await other) != pid

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


def test_workers_here_and_elsewhere_share_the_work(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        place.host()
        while not any(not host.process.pid for host in place.pool._workers):
            await asyncio.sleep(0.01)
        lives = [await opened(place.pool) for _ in range(4)]
        pids = {await pid_of(live) for live in lives}
        assert len(pids) == 2 and len(pids & set(place.pool.pids)) == 1

    with_hosts(tmp_path, settings("Misbehaves", workers=1), story)


def test_a_host_that_cannot_use_the_environment_says_why(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await place.host()
        assert raised.group_contains(HostRefused, match="NoSuchThing")
        while not any("NoSuchThing" in note and "127.0.0.1" in note for note in place.notes):
            await asyncio.sleep(0.01)

    with_hosts(tmp_path, elsewhere("NoSuchThing"), story)


def test_nobody_to_dial(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        endpoint = place.endpoint
        await place.pool.close()
        host = host_of(endpoint, 1, 0.0, place.notes.append)
        with pytest.raises(ExceptionGroup) as raised:
            await host.run()
        assert raised.group_contains(TrainerUnreachable)

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


async def dialled(
    stack: contextlib.AsyncExitStack, endpoint: Endpoint, **headers: str
) -> aiohttp.ClientWebSocketResponse:
    session = await stack.enter_async_context(
        aiohttp.ClientSession(headers={**endpoint.headers, **headers})
    )
    dialling = session.ws_connect(endpoint.url(ROUTE), ssl=endpoint.tls)
    return await stack.enter_async_context(dialling)


def test_who_has_no_token_or_another_certificate_is_not_let_in(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        async with contextlib.AsyncExitStack() as stack:
            with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
                await dialled(stack, place.endpoint, Authorization="Bearer guess")
            assert raised.value.status == 401
            nobody = aiohttp.TCPConnector(ssl=False)  # no certificate of a client
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=nobody))
            with pytest.raises((aiohttp.ClientError, OSError)):
                await session.get(place.endpoint.url(ROUTE), headers=place.endpoint.headers)

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)


@pytest.mark.parametrize(
    "data",
    [
        b"no frame",
        body_of(WorkerReady()),
        body_of(
            environment_frames.Opened(
                episode=0, said=environment_frames.WireObservation(tokens=b"abc"), tools=()
            )
        ),
        body_of(environment_frames.StepFailed(episode=0, why="of mine")),
        body_of(
            environment_frames.Calling(episode=0, calls=(), lasting=(True,)),
        ),
    ],
)
def test_whatever_a_host_says_costs_an_episode_at_most(tmp_path: Path, data: bytes) -> None:
    async def story(place: Place) -> None:
        async with contextlib.AsyncExitStack() as stack:
            liar = await dialled(stack, place.endpoint)
            setup = environment_frames.decode_to_worker(await liar.receive_bytes())
            assert (
                isinstance(setup, environment_frames.EnvironmentSetup)
                and setup.name == f"{HERE}:Misbehaves"
            )
            await liar.send_bytes(body_of(WorkerReady()))
            live = await Live.open(place.pool, RememberedCalls())
            asking = asyncio.create_task(live.reset({"index": 0}, 0))
            while not isinstance(
                environment_frames.decode_to_worker(await liar.receive_bytes()),
                environment_frames.Reset,
            ):
                pass
            await liar.send_bytes(data)
            await lost(asking)
            await liar.close()
            while place.pool._workers:
                await asyncio.sleep(0.01)
            place.host()
            assert (await said(await opened(place.pool), "")).endswith(" 1")

    with_hosts(tmp_path, elsewhere("Misbehaves"), story)
