"""A run whose servers are started by the file that docs/how-to/fleet-command.md has for copying.

Hosts are folders, and `ssh` a script that goes there. Everything else is real: the credentials that
travel in one word, the servers, the bits.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.docs_blocks import blocks_of
from tests.processes import living
from tests.providers.benches import PAGE
from tests.providers.shell_cloud import SSH
from tests.system.harness import PATIENT, SHORT, STEADY, Run, prepared

pytestmark = pytest.mark.system

HOSTS = 2
RLBOOST = "import sys; from rlboost_jax.cli.commands import main; sys.exit(main())"


def with_hosts(folder: Path) -> Path:
    """The page's file beside its `hosts.txt`, hosts, and the programs that it calls in `bin`."""
    (text,) = (block.text for block in blocks_of(PAGE) if block.language == "text")
    files = {
        "hosts.sh": text,
        "hosts.txt": "".join(f"host{number}\n" for number in range(HOSTS)),
        "bin/ssh": SSH.replace("@/", f"{folder}/"),
        "bin/rlboost": f'#!/bin/sh\nexec {sys.executable} -c "{RLBOOST}" "$@"\n',
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o700)
    for number in range(HOSTS):
        (folder / f"host{number}").mkdir()
    return folder / "hosts.sh"


def test_servers_of_the_pages_file_change_no_bit(short_and_calm: Run, tmp_path: Path) -> None:
    script = with_hosts(tmp_path / "hosts")
    settings = (
        *SHORT,
        *PATIENT,
        *STEADY,
        "fleet.provider=command",
        f"fleet.command.start={script} start",
        f"fleet.command.stop={script} stop {{name}} {{grace}}",
        f"fleet.command.list={script} list",
        "fleet.command.poll_seconds=0.5",
    )
    environment = {"PATH": f"{script.parent}/bin:{os.environ['PATH']}"}
    with prepared(tmp_path / "run", *settings, environment=environment) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1, servers=False):
            run.wait_until(lambda: len(joined(run)) >= HOSTS, "servers of both hosts")
            shown = [each.command for each in living()]
            run.wait_until(lambda: run.events("working"), "work for them")
            pid = run.wait_until(lambda: pids(script.parent), "a server's process")[0]
            before = len(joined(run))
            os.kill(pid, 9)
            run.wait_until(lambda: len(joined(run)) > before, "another on that host")
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert not pids(script.parent), "a server is left"
    join = run.workdir / "join"
    secret = (join / "token").read_text().strip()
    files = [run.workdir / name for name in ("config.json", "events.jsonl", "logs/manager.log")]
    logs = script.parent.glob("host*/.rlboost/*")
    said = [path.read_text(errors="replace") for path in (*files, *logs) if path.is_file()]
    assert said and not [text for text in (*shown, *said) if secret in text]


def joined(run: Run) -> list[str]:
    return [e["instance"] for e in run.events("joined") if not e["detail"]["reserved"]]


def pids(folder: Path) -> list[int]:
    """Servers that hosts have and that live."""
    alive = {each.pid for each in living()}
    notes = folder.glob("host*/.rlboost/taken/server")
    found = [int(path.read_text().split()[3]) for path in notes]
    return [pid for pid in found if pid in alive]
