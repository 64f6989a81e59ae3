"""SkyPilot's words: the task of a server, what becomes of requests, what clusters mean."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import ANY_POOL, Exited, Refused, Started
from rlboost_jax.providers.launcher import Job, LaunchFailed
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.skypilot import SkyPilotLauncher
from rlboost_jax.providers.skypilot_task import cluster_of, tag_of, task_of
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.skypilot_config import SkyPilotConfig, skypilot_mistakes
from rlboost_jax.trust.credentials import packed
from tests.providers.benches import SECRET, SKY_LOOK_SECONDS, SkyPilotBench, rendezvous
from tests.providers.test_contract import Ear, play

SKY = SkyPilotConfig(task="server.yaml", minutes=90, program="rlboost rollout")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SkyPilotBench]:
    made = SkyPilotBench(tmp_path)
    yield made
    made.close()


def launcher(bench: SkyPilotBench, **changes: Any) -> SkyPilotLauncher:
    fleet = bench.fleet
    settings = replace(fleet, skypilot=replace(fleet.skypilot, **changes))
    return SkyPilotLauncher(settings, rendezvous(bench.folder), look_seconds=SKY_LOOK_SECONDS)


def task(own: dict[str, Any], infra: tuple[str, ...] = ()) -> dict[str, Any]:
    return task_of(
        SKY,
        own,
        infra=infra,
        name="skypilot-1",
        nonce="n-1",
        manager="head:1234",
        join="packed",
        price_per_hour=1.5,
    )


def test_a_task_is_the_users_with_a_server_in_it() -> None:
    own = {
        "resources": {"accelerators": "L4:1", "infra": "aws"},
        "setup": "pip install rlboost_jax.whl",
        "envs": {"MINE": "1"},
        "run": "echo not this",
        "num_nodes": 4,
    }
    made = task(own)
    assert made["resources"] == {"accelerators": "L4:1", "infra": "aws", "use_spot": True}
    assert made["setup"] == own["setup"] and made["num_nodes"] == 1
    assert made["envs"] == {"MINE": "1", "RLBOOST_NONCE": "n-1"}
    assert made["secrets"] == {"RLBOOST_JOIN": "packed"}
    assert "packed" not in made["run"] and "not this" not in made["run"]
    assert "timeout --kill-after=60 90m rlboost rollout --manager=head:1234" in made["run"]
    assert own["num_nodes"] == 4, "the user's own is left as it was"


def test_the_cheapest_pool_is_taken() -> None:
    own = {"resources": {"accelerators": "L4:1", "infra": "azure", "use_spot": False}}
    made = task(own, ("aws", "gcp/us-central1"))["resources"]
    assert made == {
        "accelerators": "L4:1",
        "use_spot": False,
        "any_of": [{"infra": "aws"}, {"infra": "gcp/us-central1"}],
    }


@pytest.mark.parametrize(
    ("info", "zone"),
    [
        ('{"cluster_name": "x", "cloud": "AWS", "region": "us-east-1"}', "AWS/us-east-1"),
        ("", "skypilot"),
    ],
)
def test_a_server_says_where_it_is(info: str, zone: str) -> None:
    run = task({})["run"].replace("timeout --kill-after=60 90m rlboost rollout", "echo")
    said = subprocess.run(
        ["sh", "-c", run],
        env={"SKYPILOT_CLUSTER_INFO": info, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert said == ["--manager=head:1234", "--name=skypilot-1", "--price=1.5", f"--zone={zone}"]


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [
        (cluster_of("run", "skypilot-1", "1f-2"), ("run", "skypilot-1", "1f-2")),
        ("sky-8d3f-me", None),
        ("other.run.a.n", None),
        ("rlboost.run.a", None),
    ],
)
def test_a_name_is_a_tag(cluster: str, tag: tuple[str, str, str] | None) -> None:
    assert tag_of(cluster) == tag


def test_a_cluster_takes_itself_down(bench: SkyPilotBench) -> None:
    asyncio.run(launcher(bench, idle_minutes=3).start("a", "n", ANY_POOL))
    (launched,) = bench.sky.launched.values()
    assert launched["down"] is True and launched["idle_minutes_to_autostop"] == 3
    assert launched["secrets"]["RLBOOST_JOIN"] == packed(bench.folder / "join")
    assert SECRET not in str(launched["run"])
    bench.sky.down("rlboost.run.a.n")


@pytest.mark.parametrize(("word", "state"), [("UP", "running"), ("INIT", "waiting")])
def test_states(bench: SkyPilotBench, word: str, state: str) -> None:
    """A cluster "mine" of the user's is always there, and no job."""

    async def story() -> None:
        made = launcher(bench)
        await made.start("a", "n", ANY_POOL)
        bench.sky.states["rlboost.run.a.n"] = word
        (job,) = await made.list()
        assert job == Job(handle="rlboost.run.a.n", run="run", name="a", nonce="n", state=state)  # type: ignore[arg-type]
        await made.stop(job, 0.0)

    play(story)


def test_one_that_breaks_is_over_and_taken_down(bench: SkyPilotBench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        await ear.of("a", Started)
        bench.sky.states["rlboost.run.a.n"] = "INIT"  # as after a preemption that left its disk
        await ear.of("a", Exited)
        await provider.close()
        assert not list((bench.sky.folder / "clusters").iterdir())

    play(story)


def test_a_start_that_takes_too_long_is_abandoned(bench: SkyPilotBench) -> None:
    bench.sky.hang.set()
    with pytest.raises(LaunchFailed, match=r"not up in 0\.1 s") as error:
        asyncio.run(launcher(bench, start_seconds=0.1).start("a", "n", ANY_POOL))
    assert not error.value.sure, "a machine may have come of it"
    assert not bench.sky._hanging, "its request is cancelled"


def test_what_is_being_launched_can_be_terminated(bench: SkyPilotBench) -> None:
    async def story() -> None:
        bench.sky.hang.set()
        made = launcher(bench)
        provider = PolledProvider(made, "run", poll_seconds=0.1, settle_seconds=0.0)
        ear = Ear(provider)
        under_way = asyncio.create_task(provider.request("a", "n", ANY_POOL))
        while not bench.sky._hanging:
            await asyncio.sleep(0)
        await provider.terminate("a", 0.0)
        await ear.of("a", Refused)
        await under_way
        await provider.close()

    play(story)


def test_a_task_that_cannot_be_read_is_a_sure_refusal(bench: SkyPilotBench) -> None:
    made = launcher(bench)
    for text, what in (("- a list", "holds no task"), ("colour: red", "unknown fields: colour")):
        (bench.folder / "server.yaml").write_text(text)
        with pytest.raises(LaunchFailed, match=what) as error:
            asyncio.run(made.start("a", "n", ANY_POOL))
        assert error.value.sure and not bench.sky.launched


def test_a_request_that_the_server_forgot_is_no_answer(bench: SkyPilotBench) -> None:
    bench.sky.anew = True
    with pytest.raises(LaunchFailed, match="started anew") as error:
        asyncio.run(launcher(bench).list())
    assert not error.value.sure


def test_a_cluster_is_taken_down_by_one_request_at_a_time(bench: SkyPilotBench) -> None:
    job = Job(handle="rlboost.run.a.n", run="run", name="a", nonce="n", state="running")
    bench.sky.busy.add(job.handle)

    async def story() -> None:
        made = launcher(bench)
        await made.stop(job, 0.0)
        await made.stop(job, 0.0)
        assert bench.sky.downs == [job.handle]
        bench.sky.fail("the cloud said no")
        with pytest.raises(LaunchFailed, match="the cloud said no"):
            await made.stop(job, 0.0)
        await made.stop(job, 0.0)
        assert bench.sky.downs == [job.handle] * 2

    play(story)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"task": ""}, "fleet.skypilot.task is ''"),
        ({"task": "nowhere.yaml"}, "fleet.skypilot.task is 'nowhere.yaml', which is no file"),
        ({"infra": "aws, GCP!"}, "fleet.skypilot.infra has 'GCP!'"),
        ({"program": "x 'y"}, "fleet.skypilot.program is"),
        ({"program": " "}, "fleet.skypilot.program is ''"),
    ],
)
def test_what_cannot_work_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], line: str
) -> None:
    (tmp_path / "sky.py").touch()  # it is installed
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "server.yaml"
    path.touch()
    good = replace(SKY, task=str(path), infra="aws,gcp/us-central1/us-central1-a,kubernetes")
    assert not list(skypilot_mistakes(good))
    (found,) = skypilot_mistakes(replace(good, **change))  # type: ignore[arg-type]
    assert line in found


def test_without_skypilot_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sky", None)
    settings = FleetConfig(provider="skypilot", chaos=ChaosConfig(), skypilot=SKY)
    with pytest.raises(ConfigError, match=r"needs skypilot; .*pip install"):
        SkyPilotLauncher(settings, rendezvous(tmp_path))
