"""A run with two pools on this host: servers of both change no bit, and one is killed."""

import os
import sys
from pathlib import Path

import pytest

from tests.system.harness import PATIENT, SHORT, STEADY, Run, prepared

pytestmark = pytest.mark.system

POOLS = (
    {"name": "near", "max_instances": 1, "price_per_hour": 1.0},
    {"name": "far", "max_instances": 1, "price_per_hour": 2.0},
)


def joined(run: Run) -> list[str]:
    return [e["detail"]["pool"] for e in run.events("joined") if not e["detail"]["reserved"]]


def test_servers_of_two_pools_change_no_bit(short_and_calm: Run, tmp_path: Path) -> None:
    (tmp_path / "prices").write_text("far,3.5\n")
    settings = (
        *SHORT,
        *PATIENT,
        *STEADY,
        f"fleet.pools={POOLS!r}",
        f"fleet.price_command={sys.executable} -c 'print(open(\"{tmp_path}/prices\").read())'",
    )
    with prepared(tmp_path / "run", *settings) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1, servers=False):
            run.wait_until(lambda: set(joined(run)) == {"far", "near"}, "servers of both pools")
            run.wait_until(lambda: run.events("price"), "the price that the command says")
            run.wait_until(lambda: run.events("working"), "work for them")
            pid = run.wait_until(lambda: list(run.servers().values()), "a server's process")[0]
            before = len(joined(run))
            os.kill(pid, 9)
            run.wait_until(lambda: len(joined(run)) > before, "another of that pool")
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
