"""A whole run on a file system of a network: nothing is renamed from one folder to another, and no
file has a second name."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.diskfaults.rules import Rules, faults
from tests.system.harness import PATIENT, SHORT, Run, Standstill, prepared

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="preloads a library"),
]

# All the time: what such a file system does not have.
LACKS = (("rename", errno.EXDEV, -1, "*"), ("link", errno.EPERM, -1, "*"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults(tmp_path_factory.mktemp("faults"))


def rules_of(tmp_path: Path, library: Path) -> Rules:
    rules = Rules(root=tmp_path / "run", path=tmp_path / "rules", library=library)
    rules.set(*LACKS)
    return rules


def kill_one_server(still: Standstill) -> None:
    os.kill(still.one[1], signal.SIGKILL)


def test_a_run_needs_no_names_across_folders_and_no_second_ones(
    short_and_calm: Run, tmp_path: Path, library: Path
) -> None:
    """Its trainer, its manager and a server die once."""
    rules = rules_of(tmp_path, library)
    with prepared(
        tmp_path / "run",
        *SHORT,
        *PATIENT,
        "evaluation.every_steps=2",
        "evaluation.num_prompts=4",
        "evaluation.keep_best=True",
        environment=rules.environment,
    ) as run:
        run.hold(version=2).start()
        with run.at_a_standstill(version=2, then=4) as still:
            kill_one_server(still)
            os.kill(run.manager()["pid"], signal.SIGKILL)
        with run.at_a_standstill(version=4):
            run.kill()
        run.start().finish()
        assert run.digests() == short_and_calm.digests()
        run.assert_accounts_hold()
