"""A run whose servers are on EC2: moto's, whose instances run their user data as processes.

What stands in for a machine's system is said in tests/providers/ec2_cloud.py. Everything else is
real: the script and the credentials it fetches, the servers, the notice that one finds at its
metadata server, the interruption that follows, the bits.
"""

import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import living
from tests.providers.ec2_cloud import Ec2Cloud, notice
from tests.system.harness import (
    MARK,
    PACED,
    PATIENT,
    REPOSITORY,
    SHORT,
    STEADY,
    Run,
    prepared,
    wait_until,
)

pytestmark = pytest.mark.system

INSTANCES = 2


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Ec2Cloud]:
    """Machines on which programs are found, and go at the pace of the run, as on this host."""
    path = os.pathsep.join(
        filter(None, [str(PACED), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    )
    made = Ec2Cloud(
        tmp_path / "ec2",
        {
            "PYTHONPATH": path,
            "RLBOOST_TEST_PACE": str(tmp_path / "run.pace"),
            MARK: str(tmp_path / "run"),
        },
    )
    yield made
    made.close()


def test_instances_come_and_go_and_change_no_bit(
    short_and_calm: Run, tmp_path: Path, cloud: Ec2Cloud
) -> None:
    settings = (
        *SHORT,
        *PATIENT,
        *STEADY,
        "fleet.provider=ec2",
        f"fleet.max_instances={INSTANCES}",
        f"fleet.ec2.image={cloud.image}",
        "fleet.ec2.types=g6.xlarge,g5.xlarge",
        "fleet.ec2.profile=servers",
        f"fleet.ec2.program={sys.executable} -m rlboost_jax.rollout",
        "fleet.ec2.poll_seconds=0.5",
    )
    with prepared(tmp_path / "run", *settings, environment=cloud.environment) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1, servers=False, then=3):
            run.wait_until(lambda: len(set(joined(run))) == INSTANCES, "servers of both instances")
            shown = shown_of(cloud)
            name = run.wait_until(lambda: busy(run), "work for one")[0]
            instance = cloud.of_name(name)
            moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=120)
            cloud.notices[instance] = notice(moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
            run.wait_until(lambda: run.events("notice"), "its notice")
        with run.at_a_standstill(version=3, servers=False):
            run.wait_until(lambda: name in names(run, "drained"), "its goodbye")
            cloud.interrupt(instance)
            run.wait_until(lambda: len(set(joined(run))) == INSTANCES + 1, "another one")
            other = run.wait_until(lambda: busy(run), "work for one")[0]
            cloud.interrupt(cloud.of_name(other))  # without any notice
            run.wait_until(lambda: len(set(joined(run))) == INSTANCES + 2, "another one")
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    (said,) = [e for e in run.events("notice") if e["instance"] == name]
    assert said["detail"]["reason"].startswith("aws: terminate")
    (drained,) = [e for e in run.events("drained") if e["instance"] == name]
    assert drained["detail"]["tokens_lost"] == 0
    wait_until(lambda: states(cloud) == {"terminated"}, "end of all instances")
    assert not cloud.ec2.describe_launch_templates()["LaunchTemplates"]
    assert not cloud.ssm.describe_parameters()["Parameters"]
    assert_secrets_are_kept(run, cloud, shown)


def states(cloud: Ec2Cloud) -> set[str]:
    return {each["State"]["Name"] for each in cloud.instances().values()}


def joined(run: Run) -> list[str]:
    return [e["instance"] for e in run.events("joined") if not e["detail"]["reserved"]]


def names(run: Run, kind: str) -> list[str]:
    return [e["instance"] for e in run.events(kind)]


def busy(run: Run) -> list[str]:
    found = run.status().get("instances", ())
    return [each["instance"] for each in found if each["running"] and not each["reserved"]]


def shown_of(cloud: Ec2Cloud) -> list[str]:
    """What others may see while servers run: command lines, and what EC2 describes."""
    described = [str(cloud.instances()), str(cloud.ec2.describe_launch_templates())]
    return [*described, *(each.command for each in living())]


def assert_secrets_are_kept(run: Run, cloud: Ec2Cloud, shown: list[str]) -> None:
    join = run.workdir / "join"
    key = "".join((join / "client.key").read_text().splitlines()[1:-1])[:40]
    secrets = ((join / "token").read_text().strip(), key)
    files = [run.workdir / name for name in ("config.json", "events.jsonl", "logs/manager.log")]
    machines = [path for path in cloud.folder.glob("i-*/*") if path.is_file()]
    said = [path.read_text(errors="replace") for path in (*files, *machines) if path.exists()]
    assert machines and any("rlboost_jax.rollout" in text for text in shown)
    assert not [text for text in (*shown, *said) if any(secret in text for secret in secrets)]
