"""What a real API server refuses, and what the provider makes of one that is away or overloaded."""

import asyncio
import contextlib
import dataclasses
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector, web

from rlboost_jax.providers.base import ANY_POOL, Exited, Granted, Refused, Withdrawn
from rlboost_jax.providers.kubernetes.kubernetes_api import KubernetesApi
from rlboost_jax.providers.kubernetes.kubernetes_launcher import KubernetesLauncher
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.kubernetes_config import KubernetesConfig
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import MANIFESTS
from tests.providers.benches import made_join, rendezvous
from tests.providers.test_contract import Ear, play

pytestmark = [pytest.mark.system, pytest.mark.soak]  # real clusters start slowly

AWAY_SECONDS = 30.0
SLEEPER = KubernetesConfig(image="rlboost/server", program="sh -c 'exec sleep 3600'", gpus=0)
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: spot, namespace: rlboost}
spec: {hard: {pods: "3"}}
"""


@contextlib.asynccontextmanager
async def opened(
    folder: Path, access: Path, settings: KubernetesConfig = SLEEPER, timeout_seconds: float = 30.0
) -> AsyncIterator[tuple[PolledProvider, Ear]]:
    """A provider, closed at the end, of a run of its own."""
    made_join(folder)
    place = dataclasses.replace(rendezvous(folder), run_id=folder.name[:60])
    fleet = FleetConfig(provider="kubernetes", chaos=ChaosConfig(), kubernetes=settings)
    api = KubernetesApi("", "rlboost", timeout_seconds=timeout_seconds, kubeconfig=access)
    launcher = KubernetesLauncher(fleet, place, api=api)
    provider = PolledProvider(launcher, place.run_id, poll_seconds=0.3, settle_seconds=0.0)
    ear = Ear(provider)
    try:
        yield provider, ear
    finally:
        await provider.close()
    await ear.whole()


async def requested(provider: PolledProvider, *names: str) -> None:
    await asyncio.gather(*(provider.request(name, f"{name}-nonce", ANY_POOL) for name in names))


def names(first: int, last: int) -> list[str]:
    return [f"pod-{number}" for number in range(first, last + 1)]


def test_three_pods_become_twenty_and_five(cluster: Cluster, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path, cluster.trainer) as (provider, ear):
            await requested(provider, *names(1, 3))
            await all_of(ear, names(1, 3), Granted)
            await requested(provider, *names(4, 20))
            await all_of(ear, names(1, 20), Granted)
            assert len(await provider.list()) == len(cluster.items("pods")) == 20
            await asyncio.gather(*(provider.terminate(name, 1.0) for name in names(6, 20)))
            await all_of(ear, names(6, 20), Exited)
            assert {each.name for each in await provider.list()} == set(names(1, 5))
            assert not [e for e in ear.heard if isinstance(e, Withdrawn)]
        assert not cluster.items("pods")

    play(story)


def test_a_quota_is_a_refusal(cluster: Cluster, tmp_path: Path) -> None:
    async def story() -> None:
        cluster.kubectl("apply", "--filename=-", given=QUOTA)
        try:
            used = lambda: [q["status"].get("used") for q in cluster.items("resourcequotas")]  # noqa: E731
            cluster.wait_until(lambda: all(used()), "a quota that counts")
            async with opened(tmp_path, cluster.trainer) as (provider, ear):
                await requested(provider, *names(1, 5))
                ends = [await ear.of(name, Granted | Refused) for name in names(1, 5)]
                refused = [end for end in ends if isinstance(end, Refused)]
                assert len(refused) == 2
                assert all(
                    "403" in e.reason and "exceeded quota: spot" in e.reason for e in refused
                )
        finally:
            cluster.kubectl("delete", "--filename=-", given=QUOTA)

    play(story)


def test_an_image_that_is_not_there_is_a_refusal(cluster: Cluster, tmp_path: Path) -> None:
    settings = dataclasses.replace(SLEEPER, image="missing/server:1", pull_seconds=1.0)

    async def story() -> None:
        async with opened(tmp_path, cluster.trainer, settings) as (provider, ear):
            await requested(provider, "pod-1")
            refused = await ear.of("pod-1", Refused)
            assert isinstance(refused, Refused) and "cannot begin for 1 s: " in refused.reason
            assert "manifest for missing/server:1 not found" in refused.reason
        assert not cluster.items("pods")

    play(story)


def test_a_pod_that_no_node_takes_is_a_refusal(cluster: Cluster, tmp_path: Path) -> None:
    settings = dataclasses.replace(SLEEPER, gpus=9, pending_seconds=2.0)  # of eight a node

    async def story() -> None:
        async with opened(tmp_path, cluster.trainer, settings) as (provider, ear):
            await requested(provider, "pod-1")
            refused = await ear.of("pod-1", Refused)
            assert isinstance(refused, Refused) and "has no node for 2 s" in refused.reason
            assert "0/3 nodes are available: 3 Insufficient nvidia.com/gpu" in refused.reason
        assert not cluster.items("pods")

    play(story)


def test_a_program_that_ends_leaves_its_last_line_and_no_pod(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = "sh -c 'echo first; echo no answer from head:1; exit 3'"
    settings = dataclasses.replace(SLEEPER, program=words)

    async def story() -> None:
        async with opened(tmp_path, cluster.trainer, settings) as (provider, ear):
            await requested(provider, "pod-1")
            ended = await ear.of("pod-1", Exited)
            assert isinstance(ended, Exited) and ended.code == 3
            assert ended.reason == "exit code 3: Error; no answer from head:1"
            assert (tmp_path / "logs" / "pod-1.log").read_text().startswith("first\n")
            await asyncio.to_thread(cluster.wait_until, lambda: not cluster.items("pods"), "end")

    play(story)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_nothing_has_ended_because_the_api_server_is_away(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    async def story() -> None:
        async with opened(tmp_path, cluster.trainer, timeout_seconds=5.0) as (provider, ear):
            await requested(provider, *names(1, 3))
            await all_of(ear, names(1, 3), Granted)
            frozen = how == "frozen"
            cluster.signal("kube-apiserver", signal.SIGSTOP if frozen else signal.SIGKILL)
            await asyncio.gather(requested(provider, "pod-4"), asyncio.sleep(AWAY_SECONDS))
            refused = await ear.of("pod-4", Refused)
            assert isinstance(refused, Refused) and "cannot create a pod: " in refused.reason
            assert provider._problem.startswith("cannot list pods: ")
            if frozen:
                cluster.signal("kube-apiserver", signal.SIGCONT)
            else:
                await asyncio.to_thread(cluster.start_api)
            assert not [e for e in ear.heard if isinstance(e, Exited | Withdrawn)]
            assert {e.name for e in await provider.list()} == set(names(1, 3))
            assert not provider._problem
        assert not cluster.items("pods")  # pod-4 among them, if it came of the request after all

    play(story)


def test_one_that_has_too_much_to_do_is_asked_again_when_it_says(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def story() -> None:
        with overloaded(cluster.url) as (url, seen):
            access = cluster.access("trainer", url)
            async with opened(tmp_path, access) as (provider, ear):
                await requested(provider, *names(1, 2))
                await all_of(ear, names(1, 2), Granted)
                await provider.terminate("pod-1", 1.0)
                await ear.of("pod-1", Exited)
            assert {"POST 429", "GET 429", "DELETE 429", "POST 201", "GET 200"} <= set(seen)
            assert not [e for e in ear.heard if isinstance(e, Refused)]
        assert not cluster.items("pods")

    play(story)


def test_the_trainers_manifest_is_taken(cluster: Cluster) -> None:
    """As far as 1.20 knows its fields: of an indexed Job and its policy it does not."""
    manifest = (MANIFESTS / "trainer.yaml").read_text(encoding="utf-8")
    words = ("apply", "--dry-run=server", "--validate=false", "--filename=-")
    said = cluster.kubectl(*words, given=manifest)
    assert "service/rlboost-trainer created (server dry run)" in said
    assert "job.batch/rlboost-trainer created (server dry run)" in said
    broken = manifest.replace("completions: 2", "completions: two")
    assert "created" not in cluster.kubectl(*words, given=broken, check=False).partition("job")[2]


async def all_of(ear: Ear, wanted: list[str], kind: type) -> None:
    for name in wanted:
        await ear.of(name, kind)


@contextlib.contextmanager
def overloaded(url: str) -> Iterator[tuple[str, list[str]]]:
    """A proxy that answers every other request of a kind with 429, and what it has seen."""
    seen: list[str] = []
    turn: dict[str, bool] = {}

    async def passed_on(request: web.Request) -> web.Response:
        kind = request.method
        turn[kind] = not turn.get(kind, False)
        if turn[kind]:
            seen.append(f"{kind} 429")
            return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests")
        async with (
            ClientSession(connector=TCPConnector(ssl=False)) as session,
            session.request(
                kind,
                url + request.path_qs,
                data=await request.read(),
                headers={
                    n: request.headers[n]
                    for n in ("Authorization", "Content-Type")
                    if n in request.headers
                },
            ) as answer,
        ):
            seen.append(f"{kind} {answer.status}")
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )

    with serving(passed_on) as port:
        yield f"http://127.0.0.1:{port}", seen


@contextlib.contextmanager
def serving(handler: Callable[[web.Request], Awaitable[web.Response]]) -> Iterator[int]:
    """A web server in a thread with a loop of its own; yields its port."""
    loop, ports, begun = asyncio.new_event_loop(), list[int](), threading.Event()
    over = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        begun.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    begun.wait()
    yield ports[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
