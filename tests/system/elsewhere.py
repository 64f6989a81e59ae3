"""What tests look at in runs whose servers are started elsewhere: by Slurm, Kubernetes, EC2."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.processes import living
from tests.system.harness import Run

FILES = ("config.json", "events.jsonl", "manager.json", "metrics.jsonl")


def joined(run: Run) -> set[str]:
    """Names of preemptible instances that ever have."""
    return {e["instance"] for e in run.events("joined") if not e["detail"]["reserved"]}


def busy(run: Run) -> list[str]:
    """Names of the instances that have work now."""
    found = run.status().get("instances", ())
    return [each["instance"] for each in found if each["running"] and not each["reserved"]]


def reap(run: Run, environment: Mapping[str, str], what: str, *, code: int) -> str:
    """What `rlboost fleet` says, which ends with that exit code."""
    ran = subprocess.run(
        (sys.executable, "-m", "rlboost_jax.cli.fleet", what, str(run.workdir)),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout


def assert_secrets_are_kept(
    run: Run, shown: Iterable[str], logs: Iterable[Path], *, tag: str, more: Iterable[str] = ()
) -> None:
    """What opens the manager is on no command line, in no file or log, and nowhere that is shown.

    Args:
        shown: what a provider shows to others.
        tag: a word that is there, so that something was looked at.
        more: secrets besides those of `run.workdir / "join"`.
    """
    join = run.workdir / "join"
    key = "".join((join / "client.key").read_text().splitlines()[1:-1])[:40]
    paths = [*(run.workdir / name for name in FILES), *logs]
    texts = [each.command for each in living()]
    texts += [*shown, *(path.read_text(errors="replace") for path in paths if path.exists())]
    assert any(tag in text for text in texts)
    for secret in ((join / "token").read_text().strip(), key, *more):
        assert len(secret) > 20 and not [text for text in texts if secret in text]
