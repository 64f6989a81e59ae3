"""A host with nothing but Python joins a run by the run's own wheels, the real ones.

    make test-wheelhouse

Minutes: hundreds of megabytes are downloaded (unless RLBOOST_WHEELS names a folder with them) and
installed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlboost_jax.cli import bootstrap
from rlboost_jax.providers.base import NONCE_VARIABLE
from rlboost_jax.trust.credentials import JOIN_VARIABLE, packed
from tests.system.harness import MARK, PATIENT, SHORT, Child, Run, prepared

# Becomes the program that a bare host runs, with an environment of that and nothing else.
BARE = """
import json, os, sys
python, script, place = sys.argv[1:]
environment = open(place).read()
words = [python, "-I", "-c", open(script).read(), "--name=bare", "--notices=none"]
os.execve(python, words, json.loads(environment))
"""

pytestmark = [pytest.mark.system, pytest.mark.soak]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    if given := os.environ.get("RLBOOST_WHEELS"):
        return Path(given)
    folder = tmp_path / "wheels"
    words = (sys.executable, "-m", "rlboost_jax.cli.wheelhouse", f"--to={folder}")
    subprocess.run(words, check=True)
    return folder


def test_a_bare_python_generates_for_a_run(
    short_and_calm: Run, tmp_path: Path, wheels: Path
) -> None:
    settings = (*SHORT, *PATIENT, "fleet.provider=none", f"fleet.wheelhouse={wheels}")
    with prepared(tmp_path / "run", *settings) as run:
        run.hold(version=1).start()
        manager = run.manager()
        home = tmp_path / "home"
        home.mkdir()
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        environment = {
            "PATH": "/nonexistent",
            "HOME": str(home),
            "RLBOOST_MANAGER": manager["address"],
            JOIN_VARIABLE: packed(run.workdir / "join"),
            NONCE_VARIABLE: "by-hand-bare",
            **{name: run.environment[name] for name in (MARK, "RLBOOST_TEST_PACE")},
        }
        words = [python, "-I", "-c", BARE, python, bootstrap.__file__, str(home / "environment")]
        (home / "environment").write_text(json.dumps(environment))
        with run.at_a_standstill(version=1, servers=False):
            server = Child(words, run.logs, {}, "by-hand-bare")
            run.by_hand.append(server)
            run.wait_until(
                lambda: "bare" in {e["instance"] for e in run.events("ready")} or not server.lives,
                "a server of the run's wheels",
            )
            assert server.lives, server.output + server.errors
        run.wait_until(lambda: run.events("working"), "work for it")
        run.finish()
    assert run.digests() == short_and_calm.digests()
