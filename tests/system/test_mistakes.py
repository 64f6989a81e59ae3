"""Mistakes of use: a line that says what to change, a bad exit code, nothing overwritten."""

import hashlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.platform import exits
from rlboost_jax.settings.config_loading import run_config
from tests.patience import PATIENCE_SECONDS
from tests.system.harness import REPOSITORY, TINY

pytestmark = pytest.mark.system


def main(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "rlboost_jax.main", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def record():
    return run_config(tiny.get_config())


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, record):
    """Folder of a run of configs/tiny.py which has ended."""
    path = tmp_path_factory.mktemp("mistakes") / "run"
    with Workdir(path, record):
        pass
    (path / "metrics.jsonl").write_text('{"step": 0}\n')
    (path / "report.html").write_text("<html>")
    return path


def refused(workdir: Path, *arguments: str, config: Path | str = TINY) -> str:
    """The one line that a command says which leaves the workdir as it is."""
    before = digests(workdir)
    done = main(f"--config={config}", f"--workdir={workdir}", *arguments)
    assert done.returncode == exits.MISTAKE, "no supervisor starts it again"
    assert done.stderr.count("\n") == 1 and not done.stdout, done.stderr + done.stdout
    assert digests(workdir) == before
    return done.stderr


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--config.engine.max_prompt_tokens=1", "raise engine.max_prompt_tokens or lower task."),
        ("--config.learner.prompts_per_stp=8", "did you mean config.learner.prompts_per_step?"),
        ("--config.lerner.prompts_per_step=8", "did you mean config.learner.prompts_per_step?"),
        ("--config.learner=8", "is a section; set a field of it"),
        ("--config.learner.prompts_per_step=many", "--config.learner.prompts_per_step=many"),
        ("--config.fleet.trace=nowhere.csv", "fleet.trace: cannot read nowhere.csv"),
        ("--config.fleet.trace=Makefile", "must read milliseconds,add|remove,name"),
        ("--wrkdir=elsewhere", "Did you mean: workdir"),
        ("again", "unexpected argument 'again'"),
        ("--config.seed=5", "another configuration (seed: 0 → 5); choose another --workdir"),
        ("--config.learner.mesh=(2, 2, 2)", "8 devices needed by learner.mesh=(2, 2, 2)"),
    ],
)
def test_a_wrong_argument(workdir, argument, says):
    assert says in refused(workdir, argument)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file or directory; name a file, or what `rlboost configs` lists"),
        ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
        ("def get_config(:", "line 1: SyntaxError"),
        ("", "has no function get_config"),
        ("def get_config():\n    return 3", "must return the ConfigDict"),
        (
            "from configs import tiny\n\n\ndef get_config():\n    config = tiny.get_config()\n"
            "    config.learner.prompts_per_stp = 8\n    return config",
            "did you mean learner.prompts_per_step?",
        ),
        (
            "from configs import tiny\n\n\ndef get_config():\n    config = tiny.get_config()\n"
            "    config.lerner.prompts_per_step = 8\n    return config",
            "line 6: AttributeError",
        ),
    ],
)
def test_a_wrong_configuration_file(workdir, tmp_path, text, says):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    line = refused(workdir, config=file)
    assert says in line


def test_a_workdir_in_use(workdir, record):
    with Workdir(workdir, record):
        line = refused(workdir)
    assert "is in use by process" in line and "choose another --workdir" in line


def test_a_mistake_that_is_found_late_leaves_no_folder(tmp_path):
    """A port that another process has: the manager says so, once a trainer has set itself up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = main(
            *(f"--config={TINY}", f"--workdir={tmp_path / 'runs' / 'mine'}"),
            f"--config.manager.port={port}",
        )
    assert done.returncode == exits.MISTAKE
    assert done.stderr.count("\n") == 1 and "manager.port" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_workdir(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    assert "not a run's; choose another --workdir" in refused(tmp_path)


def test_a_workdir_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("precious")
    done = main(f"--config={TINY}", f"--workdir={tmp_path / 'file'}")
    assert done.returncode == exits.MISTAKE, "no supervisor starts it again"
    assert done.stderr.count("\n") == 1 and "choose another --workdir" in done.stderr
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((), "no --config given"), ((f"--config={TINY}",), "no --workdir given")],
)
def test_a_missing_flag(arguments, says):
    done = main(*arguments)
    assert done.returncode == exits.MISTAKE, "no supervisor starts it again"
    assert done.stderr.count("\n") == 1 and says in done.stderr


def test_a_dry_run_tells_the_plan_and_touches_no_device(tmp_path):
    workdir = tmp_path / "run"
    done = main(
        *(f"--config={TINY}", f"--workdir={workdir}", "--config.fleet.bill_local=True"),
        "--dry_run",
        python=("-X", "importtime"),
    )
    assert done.returncode == 0
    plan = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert "1 trainer, 1 manager, 0 to 3 rollout servers" in plan["processes"]
    assert "KiB" in plan["engine"] and "MiB" in plan["learner"]
    assert "at most 3" in plan["fleet"]
    assert "$18.45 an hour" in plan["cost"]
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert names.count("ml_collections") == 1, "it starts anew with huge pages before its imports"
    imported = {name.split(".")[0] for name in names}
    assert "rlboost_jax" in imported
    assert not imported & {"jax", "jaxlib", "flax"}
    assert not workdir.exists()
