"""EC2's words: what it is asked for, what its answers mean, what stands at AWS and goes again."""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.cli import fleet
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import ANY_POOL, Exited, Granted, Started
from rlboost_jax.providers.ec2 import PAGE, Ec2Launcher
from rlboost_jax.providers.ec2_machine import script_of, template_of
from rlboost_jax.providers.launcher import Job, LaunchFailed
from rlboost_jax.settings.ec2_config import Ec2Config, ec2_mistakes, pools_of
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.trust.credentials import packed
from tests.providers.benches import SECRET, killed, made_join, polled, rendezvous
from tests.providers.ec2_cloud import ACCOUNT, REGION, Ec2Cloud
from tests.providers.test_contract import Ear, play
from tests.workdirs import begun

SLEEPS = "sh -c 'exec sleep 600' server"  # whatever it is given besides
EC2 = Ec2Config(
    image="ami-1", types="g6.xlarge,g5.xlarge", profile="servers", minutes=90, program=SLEEPS
)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Ec2Cloud]:
    made = Ec2Cloud(tmp_path / "ec2")
    made_join(tmp_path)
    yield made
    made.close()


def launcher(
    cloud: Ec2Cloud, ec2: Ec2Config = EC2, run: str = "run", page: int = PAGE
) -> Ec2Launcher:
    if ec2.image:
        ec2 = replace(ec2, image=cloud.image)
    settings = FleetConfig(provider="ec2", chaos=ChaosConfig(), ec2=ec2, price_per_hour=1.5)
    place = replace(rendezvous(cloud.folder.parent), run_id=run)
    return Ec2Launcher(settings, place, page=page)


def asked(cloud: Ec2Cloud, pool: str = ANY_POOL, ec2: Ec2Config = EC2) -> dict[str, Any]:
    """What EC2 was asked for."""
    asyncio.run(launcher(cloud, ec2).start("ec2-1", "n-1", pool))
    return cloud.fleets[-1]


def template(cloud: Ec2Cloud) -> dict[str, Any]:
    """Data of the newest."""
    found = cloud.ec2.describe_launch_templates()["LaunchTemplates"][-1]["LaunchTemplateName"]
    answer = cloud.ec2.describe_launch_template_versions(
        LaunchTemplateName=found, Versions=["$Latest"]
    )
    data: dict[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def standing(cloud: Ec2Cloud) -> tuple[int, int]:
    """Launch templates and parameters that there are."""
    templates = cloud.ec2.describe_launch_templates()["LaunchTemplates"]
    return len(templates), len(cloud.ssm.describe_parameters()["Parameters"])


def test_an_instance_is_one_fleet_tagged_and_limited(cloud: Ec2Cloud) -> None:
    request = asked(cloud, ec2=replace(EC2, tags="team=rl, cost=7"))
    assert request["Type"] == "instant" and len(request["ClientToken"]) == 64
    assert request["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 1,
        "DefaultTargetCapacityType": "spot",
    }
    assert request["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    (found,) = cloud.instances().values()
    tags = {each["Key"]: each["Value"] for each in found["Tags"]}
    expires = tags.pop("rlboost:expires")
    assert expires > "2026" and expires.endswith("Z") and found["InstanceLifecycle"] == "spot"
    assert tags == {
        "Name": "rlboost/run/ec2-1",
        "rlboost:run": "run",
        "rlboost:name": "ec2-1",
        "rlboost:nonce": "n-1",
        "team": "rl",
        "cost": "7",
    }


def test_a_nonce_is_one_token_and_another_nonce_another(cloud: Ec2Cloud) -> None:
    made = launcher(cloud)
    for nonce in ("n-1", "n-1", "n-2"):
        asyncio.run(made.start("a", nonce, ANY_POOL))
    first, again, other = (each["ClientToken"] for each in cloud.fleets)
    assert first == again != other


@pytest.mark.parametrize(
    ("places", "pool", "overrides"),
    [
        ("", ANY_POOL, [{"InstanceType": "g6.xlarge"}, {"InstanceType": "g5.xlarge"}]),
        ("", "g5.xlarge", [{"InstanceType": "g5.xlarge"}]),
        (
            "us-east-1a, subnet-1",
            "g6.xlarge/us-east-1a",
            [{"InstanceType": "g6.xlarge", "AvailabilityZone": "us-east-1a"}],
        ),
    ],
)
def test_each_type_in_each_place_is_a_pool(
    cloud: Ec2Cloud, places: str, pool: str, overrides: list[dict[str, str]]
) -> None:
    request = asked(cloud, pool, replace(EC2, places=places))
    assert request["LaunchTemplateConfigs"][0]["Overrides"] == overrides


def test_pools_of_types_and_places() -> None:
    found = pools_of(replace(EC2, places="us-east-1a, subnet-1"))
    assert found["g5.xlarge/subnet-1"] == {"InstanceType": "g5.xlarge", "SubnetId": "subnet-1"}
    assert len(found) == 4


def test_on_demand_and_a_price(cloud: Ec2Cloud) -> None:
    request = asked(cloud, ec2=replace(EC2, market="on_demand", max_price=2.5))
    capacity = request["TargetCapacitySpecification"]
    assert capacity["DefaultTargetCapacityType"] == "on-demand" and not request["SpotOptions"]
    assert "MaxPrice" not in json.dumps(request)
    overrides = asked(cloud, ec2=replace(EC2, max_price=2.5))["LaunchTemplateConfigs"][0]
    assert [each["MaxPrice"] for each in overrides["Overrides"]] == ["2.5", "2.5"]


def test_a_machine_ends_itself_and_says_who_it_is_to_nobody_without_a_token(
    cloud: Ec2Cloud,
) -> None:
    asked(cloud, ec2=replace(EC2, key="mine", security_groups="sg-1,sg-2"))
    data = template(cloud)
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "InstanceMetadataTags": "enabled",
    }
    assert data["IamInstanceProfile"] == {"Name": "servers"} and data["KeyName"] == "mine"
    assert data["SecurityGroupIds"] == ["sg-1", "sg-2"] and "InstanceType" not in data


def test_a_machine_arms_its_end_before_anything_else_and_goes_with_its_server(
    cloud: Ec2Cloud,
) -> None:
    """The server here is `false`, which fails at once."""

    async def story() -> None:
        provider = polled(launcher(cloud, replace(EC2, program="false")))
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        ended = await ear.of("a", Exited)
        assert isinstance(ended, Exited) and "InstanceInitiatedShutdown" in ended.reason
        (instance,) = cloud.instances()
        first, *rest = cloud.said(instance).splitlines()
        assert first == "shutdown -P +90"
        assert any("ExecStopPost=/usr/bin/systemctl --no-block poweroff" in each for each in rest)
        await provider.close()

    play(story)


def test_credentials_are_nowhere_but_in_an_encrypted_parameter(cloud: Ec2Cloud) -> None:
    async def story() -> None:
        provider = polled(launcher(cloud))
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        await ear.of("a", Started)
        secrets = (SECRET, packed(cloud.folder.parent / "join"))
        (instance,) = cloud.instances()
        shown = [json.dumps(each, default=str) for each in cloud.instances().values()]
        shown += [json.dumps(template(cloud), default=str), json.dumps(cloud.fleets, default=str)]
        shown += [(cloud.folder / instance / "user-data").read_text()]
        shown += [(cloud.folder / instance / "log").read_text()]
        assert not [text for text in shown if any(secret in text for secret in secrets)]
        (found,) = cloud.ssm.describe_parameters()["Parameters"]
        assert found["Name"] == "/rlboost/run/join" and found["Type"] == "SecureString"
        value = cloud.ssm.get_parameter(Name=found["Name"], WithDecryption=True)
        assert value["Parameter"]["Value"] == secrets[1]
        await provider.close()
        assert standing(cloud) == (0, 0), "the end of the run takes them away"

    play(story)


def test_renewed_credentials_are_put_there_and_the_same_ones_are_not(cloud: Ec2Cloud) -> None:
    made, join = launcher(cloud), cloud.folder.parent / "join"

    def version() -> int:
        found: int = cloud.ssm.describe_parameters()["Parameters"][0]["Version"]
        return found

    asyncio.run(made.start("a", "n-1", ANY_POOL))
    asyncio.run(made.start("b", "n-2", ANY_POOL))
    assert version() == 1
    (join / "client.pem").write_text("a new one")
    asyncio.run(made.start("c", "n-3", ANY_POOL))
    found = cloud.ssm.get_parameter(Name="/rlboost/run/join", WithDecryption=True)
    assert version() == 2 and found["Parameter"]["Value"] == packed(join)
    (join / "token").unlink()
    with pytest.raises(LaunchFailed, match="cannot read") as error:
        asyncio.run(made.start("d", "n-4", ANY_POOL))
    assert error.value.sure and len(cloud.fleets) == 3


@pytest.mark.parametrize(
    "code",
    ["InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded", "SpotMaxPriceTooLow"],
)
def test_no_capacity_is_a_refusal_that_names_pools(cloud: Ec2Cloud, code: str) -> None:
    cloud.fails.append((code, "not now"))
    with pytest.raises(LaunchFailed) as error:
        asyncio.run(launcher(cloud).start("a", "n", ANY_POOL))
    assert str(error.value) == f"g6.xlarge, g5.xlarge: {code}: not now"
    assert error.value.sure and not cloud.instances()


@pytest.mark.parametrize(
    ("code", "status", "sure"),
    [
        ("RequestLimitExceeded", 503, True),  # was turned away unread
        ("UnauthorizedOperation", 403, True),
        ("InsufficientInstanceCapacity", 500, False),
        ("InternalError", 500, False),
        ("Unavailable", 503, False),
    ],
)
def test_whether_something_came_of_a_start_that_failed(
    cloud: Ec2Cloud, code: str, status: int, sure: bool
) -> None:
    cloud.breaks = (code, "no\nreally", status)
    with pytest.raises(LaunchFailed, match=f"{code}: no really") as error:
        asyncio.run(launcher(cloud).start("a", "n", ANY_POOL))
    assert error.value.sure == sure


def test_who_does_not_answer_may_have_done_it_and_who_is_not_there_has_not(
    cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener takes connections, as the kernel does for it, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{silent.getsockname()[1]}")
        made = launcher(cloud, replace(EC2, timeout_seconds=0.1))
        # They are there; not asked for, as that may take as long.
        credentials = packed(cloud.folder.parent / "join")
        made._keeps._credentials = hashlib.sha256(credentials.encode()).hexdigest()
        made._keeps._template = "there"
        with pytest.raises(LaunchFailed, match="timeout") as error:
            asyncio.run(made.start("a", "n", ANY_POOL))
        assert not error.value.sure
    with pytest.raises(LaunchFailed, match="Could not connect") as error:
        asyncio.run(made.start("a", "n", ANY_POOL))
    assert error.value.sure


def test_what_fails_ahead_of_the_start_has_started_nothing(
    cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", f"http://127.0.0.1:{silent.getsockname()[1]}")
        made = launcher(cloud, replace(EC2, timeout_seconds=0.1))
        with pytest.raises(LaunchFailed, match="timeout") as error:
            asyncio.run(made.start("a", "n", ANY_POOL))
    assert error.value.sure and not cloud.fleets


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("pending", "waiting"),
        ("running", "running"),
        ("stopping", "waiting"),
        ("stopped", "waiting"),
        ("shutting-down", "over"),
        ("terminated", "over"),
    ],
)
def test_states(cloud: Ec2Cloud, state: str, found: str) -> None:
    made = launcher(cloud)
    asyncio.run(made.start("a", "n", ANY_POOL))
    (instance,) = cloud.backend_instances().values()
    instance._state.name = state
    (job,) = asyncio.run(made.list())
    assert job.state == found and (job.run, job.name, job.nonce) == ("run", "a", "n")


def test_a_server_with_a_grace_is_there_while_its_machine_goes_down(cloud: Ec2Cloud) -> None:
    """Not billed any more, but it may still send tokens. At once means at once."""
    cloud.boots = False  # it takes for ever to shut down
    made = launcher(cloud)

    async def story() -> None:
        await made.start("a", "n", ANY_POOL)
        (job,) = await made.list()
        await made.stop(job, 30.0)
        (leaving,) = await made.list()
        assert leaving.state == "running" and cloud.stops == [(job.handle, False)]
        await made.stop(leaving, 0.0)
        (gone,) = await made.list()
        assert gone.state == "over" and cloud.stops[1:] == [(job.handle, True)]
        assert "UserInitiatedShutdown" in gone.reason

    play(story)


def test_who_is_not_there_any_more_is_no_mistake(cloud: Ec2Cloud) -> None:
    gone = Job(handle="i-0123456789abcdef0", run="run", name="a", nonce="n", state="running")
    asyncio.run(launcher(cloud).stop(gone, 0.0))


def test_an_interruption_is_the_reason_of_its_end(cloud: Ec2Cloud) -> None:
    async def story() -> None:
        provider = polled(launcher(cloud))
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        await ear.of("a", Granted)
        cloud.interrupt(cloud.of_name("a"))
        ended = await ear.of("a", Exited)
        assert isinstance(ended, Exited) and "Server.SpotInstanceTermination" in ended.reason
        await provider.close()

    play(story)


def test_a_list_is_whole_however_many_pages_it_has(cloud: Ec2Cloud) -> None:
    cloud.boots = False
    made = launcher(cloud, page=5)

    async def story() -> None:
        for number in range(12):
            await made.start(f"ec2-{number}", f"n-{number}", ANY_POOL)
        assert sorted(job.nonce for job in await made.list()) == sorted(
            f"n-{number}" for number in range(12)
        )

    play(story)


def test_instances_of_others_are_nobodys_job(cloud: Ec2Cloud) -> None:
    cloud.ec2.run_instances(ImageId=cloud.image, MinCount=1, MaxCount=1)
    half = [{"ResourceType": "instance", "Tags": [{"Key": "rlboost:run", "Value": "run"}]}]
    cloud.ec2.run_instances(ImageId=cloud.image, MinCount=1, MaxCount=1, TagSpecifications=half)
    assert not list(asyncio.run(launcher(cloud).list()))


def test_a_template_that_somebody_removed_is_made_again(cloud: Ec2Cloud) -> None:
    made = launcher(cloud)
    asyncio.run(made.start("a", "n-1", ANY_POOL))
    for each in cloud.ec2.describe_launch_templates()["LaunchTemplates"]:
        cloud.ec2.delete_launch_template(LaunchTemplateId=each["LaunchTemplateId"])
    with pytest.raises(LaunchFailed):
        asyncio.run(made.start("b", "n-2", ANY_POOL))
    asyncio.run(made.start("c", "n-3", ANY_POOL))
    assert len(cloud.instances()) == 2


def test_the_next_manager_takes_the_template_that_is_there(cloud: Ec2Cloud) -> None:
    asyncio.run(launcher(cloud).start("a", "n-1", ANY_POOL))
    asyncio.run(launcher(cloud).start("b", "n-2", ANY_POOL))
    assert standing(cloud) == (1, 1)
    moved = replace(EC2, setup="true")
    asyncio.run(launcher(cloud, moved).start("c", "n-3", ANY_POOL))
    assert standing(cloud) == (2, 1)


def test_a_template_of_the_users_own_is_the_base(cloud: Ec2Cloud) -> None:
    own = {
        "ImageId": cloud.image,
        "InstanceType": "m5.large",
        "KeyName": "theirs",
        "EbsOptimized": True,
        "UserData": "b3du",
        "MetadataOptions": {"HttpPutResponseHopLimit": 3, "HttpTokens": "optional"},
    }
    cloud.ec2.create_launch_template(LaunchTemplateName="own", LaunchTemplateData=own)
    asked(cloud, ec2=replace(EC2, image="", launch_template="own:1"))
    data = template(cloud)
    assert data["KeyName"] == "theirs" and data["EbsOptimized"] is True
    assert data["UserData"] != "b3du" and "InstanceType" not in data
    options = data["MetadataOptions"]
    assert options["HttpTokens"] == "required" and options["HttpPutResponseHopLimit"] == 3


def test_an_answer_is_cut_to_what_a_request_takes(cloud: Ec2Cloud) -> None:
    found = {"MetadataOptions": {"State": "applied", "HttpTokens": "required"}, "Other": 1}
    assert launcher(cloud)._aws.fitting("RequestLaunchTemplateData", found) == {
        "MetadataOptions": {"HttpTokens": "required"}
    }


def test_what_a_dead_run_has_left_is_found_and_reaped_parameters_too(
    cloud: Ec2Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = cloud.folder.parent
    settings = {"image": cloud.image, "types": "g6.xlarge", "profile": "p", "poll_seconds": 0.1}
    begun(workdir, provider="ec2", ec2=settings)

    async def abandoned(run: str, name: str) -> None:
        made = launcher(cloud, run=run)
        provider = polled(made, run)
        ear = Ear(provider)
        await provider.request(name, f"nonce-{name}", ANY_POOL)
        await ear.of(name, Started)
        await killed(provider)

    play(lambda: abandoned("run", "a"))
    play(lambda: abandoned("other", "x"))
    assert fleet.main(["list", str(workdir)]) == fleet.LEFT
    said = capsys.readouterr().out
    assert f"{workdir}  a\n" in said and f"{workdir}  parameter /rlboost/run/join\n" in said
    assert "of another run, other  x (i-" in said
    assert "of another run, other  parameter /rlboost/other/join\n" in said
    assert standing(cloud) == (2, 2), "a list removes nothing"
    assert fleet.main(["reap", str(workdir)]) == 0
    assert f"{workdir}  3 ended" in capsys.readouterr().out
    assert standing(cloud) == (1, 1) and alive(cloud) == ["x"]
    assert fleet.main(["reap", str(workdir), "--all"]) == 0
    assert standing(cloud) == (0, 0) and alive(cloud) == []
    assert fleet.main(["list", str(workdir)]) == 0
    assert "nothing is left" in capsys.readouterr().out


def test_a_parameter_alone_is_something_left(
    cloud: Ec2Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """No machine was ever granted: the credentials stand there all the same."""
    workdir = cloud.folder.parent
    begun(workdir, provider="ec2", ec2={"image": "ami-1", "types": "g6.xlarge", "profile": "p"})
    cloud.fails.append(("InsufficientInstanceCapacity", "none"))
    with pytest.raises(LaunchFailed):
        asyncio.run(launcher(cloud).start("a", "n", ANY_POOL))
    assert fleet.main(["list", str(workdir)]) == fleet.LEFT
    assert fleet.main(["reap", str(workdir)]) == 0
    assert standing(cloud) == (0, 0) and "2 ended" in capsys.readouterr().out


def test_the_script_is_one_and_names_what_it_is_given(tmp_path: Path) -> None:
    ec2 = replace(EC2, setup=". /opt/venv/bin/activate", program="rlboost rollout")
    text = script_of(ec2, rendezvous(tmp_path), "eu-west-1", 1.5)
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert ". /opt/venv/bin/activate\n" in text and "--region=eu-west-1" in text
    assert 'rlboost rollout --manager=127.0.0.1:9 --name="$name" --price=1.5' in text


def test_another_script_is_another_template() -> None:
    names = {template_of(EC2, "run", script, {})[0] for script in ("a", "b", "a")}
    assert len(names) == 2 and all(len(name) <= 128 for name in names)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"image": ""}, "fleet.ec2.image is ''"),
        ({"types": ""}, "fleet.ec2.types is ''"),
        ({"types": "g6"}, "fleet.ec2.types has 'g6', which is not like g6.xlarge"),
        ({"places": "us-east-1"}, "fleet.ec2.places has 'us-east-1'"),
        ({"security_groups": "default"}, "fleet.ec2.security_groups has 'default'"),
        ({"profile": ""}, "fleet.ec2.profile is ''"),
        ({"tags": "team"}, "fleet.ec2.tags has 'team'"),
        ({"tags": "rlboost:run=x"}, "fleet.ec2.tags has 'rlboost:run=x'"),
        ({"program": "x 'y"}, "fleet.ec2.program is"),
        ({"program": ""}, "fleet.ec2.program is ''"),
        ({"setup": "x" * 9000}, "fleet.ec2.setup has 9000 characters, more than 8000"),
        ({"types": ",".join(f"a{n}.large" for n in range(301))}, "make 301 pools"),
    ],
)
def test_what_cannot_work_is_a_mistake(change: dict[str, str], line: str) -> None:
    pytest.importorskip("boto3")
    (found,) = ec2_mistakes(replace(EC2, **change))  # type: ignore[arg-type]
    assert line in found


def test_what_can_is_none() -> None:
    pytest.importorskip("boto3")
    good = replace(
        EC2,
        image="resolve:ssm:/mine/image",
        types="p5.48xlarge, u-6tb1.112xlarge,g6e.xlarge",
        places="us-east-1a,us-gov-west-1b,us-west-2-lax-1a,subnet-0123abcd",
        security_groups="sg-0123abcd",
        tags="team=rl",
    )
    assert not list(ec2_mistakes(good))


def test_without_boto3_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    settings = FleetConfig(provider="ec2", chaos=ChaosConfig(), ec2=EC2)
    with pytest.raises(ConfigError, match=r"needs boto3; .*\[ec2\]"):
        Ec2Launcher(settings, rendezvous(tmp_path))


def test_without_a_region_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    settings = FleetConfig(provider="ec2", chaos=ChaosConfig(), ec2=EC2)
    with pytest.raises(ConfigError, match=r"fleet\.ec2\.region"):
        Ec2Launcher(settings, rendezvous(tmp_path))


def alive(cloud: Ec2Cloud) -> list[str]:
    from moto.backends import get_backend

    found = get_backend("ec2")[ACCOUNT][REGION].all_instances()
    living = [each for each in found if each.state == "running"]
    return [
        tag["value"] for each in living for tag in each.get_tags() if tag["key"] == "rlboost:name"
    ]
