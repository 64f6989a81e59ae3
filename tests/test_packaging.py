"""What is declared, what is locked, and what the repository's own folders must not break."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import rlboost_kernels
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlboost_jax
from rlboost_jax.environments import episode_records
from rlboost_jax.environments.builtin import corpus
from rlboost_jax.manager import journal_entries
from tests.oracles import torch_oracle
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
LANES = {"3.11": "0.10.2", "3.12": None, "3.13": None}  # Python → jax, None for "a later one"

# Not Google's: a dependency-confusion demonstration. Nor is its archived relative of use.
FORBIDDEN = {"jetstream-pt", "jetstream", "google-jetstream", "clu"}


def project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


def requirements(folder: Path) -> list[Requirement]:
    """Requirements of a distribution with all its extras."""
    table = project(folder)
    extras = table.get("optional-dependencies", {}).values()
    return [Requirement(r) for r in [*table["dependencies"], *(r for e in extras for r in e)]]


def locked(python: str) -> dict[str, str]:
    """Versions that the lock gives on Linux under a Python version."""
    where = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
    }
    found = {}
    for requirement in lock_lines():
        if requirement.marker is None or requirement.marker.evaluate(where):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"two versions of {name} under Python {python}"
            (version,) = requirement.specifier
            assert version.operator == "==", requirement
            found[name] = version.version
    return found


def lock_lines() -> list[Requirement]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return [Requirement(line) for line in lines]


def everything_named() -> set[str]:
    declared = [r for folder in (ROOT, ROOT / "kernels") for r in requirements(folder)]
    return {canonicalize_name(r.name) for r in [*declared, *lock_lines()]}


def test_no_dependency_is_an_impostor() -> None:
    assert not everything_named() & FORBIDDEN
    assert "jetstream" not in LOCK.read_text().lower()


def test_kernels_need_jax_and_numpy_and_what_jax_does_not_name() -> None:
    assert {r.name for r in requirements(ROOT / "kernels")} == {"jax", "numpy", "absl-py"}


def test_the_extras_are_these() -> None:
    extras = set(project(ROOT)["optional-dependencies"])
    adapters = {"openenv", "reasoning-gym", "skyrl-gym", "textarena", "verifiers"}
    others = {"cuda12", "cuda13", "gguf", "hf", "math", "mlflow", "wandb", "notebooks", "dev"}
    others |= {"kubernetes", "ec2", "store"}
    assert extras == others | adapters


@pytest.mark.parametrize("python", LANES)
def test_the_lock_meets_every_requirement(python: str) -> None:
    versions = locked(python)
    for requirement in [*requirements(ROOT), *requirements(ROOT / "kernels")]:
        name = canonicalize_name(requirement.name)
        if name == "rlboost-kernels":
            continue
        if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
            continue
        assert name in versions, f"{name} is not locked; run make lock"
        assert requirement.specifier.contains(versions[name], prereleases=True), name


@pytest.mark.parametrize(("python", "jax"), LANES.items())
def test_both_lanes_are_locked(python: str, jax: str | None) -> None:
    versions = locked(python)
    assert versions["jax"] == versions["jaxlib"]
    if jax:
        assert versions["jax"] == jax
    else:
        assert tuple(map(int, versions["jax"].split(".")[:2])) >= (0, 11)


def test_torch_of_the_index_can_be_installed_beside_the_lock() -> None:
    """Its wheels for Linux want exact versions of NVIDIA's libraries, which `cuda13` has, too. Its
    wheels without CUDA, which may be at hand where the lock is made, want none."""
    for python in LANES:
        found = locked(python)
        assert found["nvidia-cudnn-cu13"] == "9.20.0.48", "of torch 2.13.0"
    assert {"torch", "triton", "cuda-toolkit", "nvidia-cusparselt-cu13"} <= set(locked("3.11"))


def test_the_lock_names_versions_only() -> None:
    """No host, path or hash: where packages come from is the reader's own setting."""
    text = LOCK.read_text()
    assert not re.search(r"://|--|@|\+|/", text)


def test_data_files_are_packaged() -> None:
    """A wheel holds every file that is read beside the code."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = set(table["tool"]["setuptools"]["package-data"]["rlboost_jax"])
    beside = {
        str(path.relative_to(ROOT / "rlboost_jax"))
        for path in (ROOT / "rlboost_jax").rglob("*")
        if path.is_file()
        and path.suffix != ".py"
        and path.name != "NOTES.md"
        and "__pycache__" not in path.parts
    }
    assert beside == packaged


def test_wheels_have_one_name_at_their_top_and_a_licence() -> None:
    """What a wheel then holds: tests/wheels.py."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert table["tool"]["setuptools"]["packages"]["find"]["include"] == ["rlboost_jax*"]
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence and "Version 2.0, January 2004" in licence
    assert (ROOT / "kernels" / "LICENSE").read_text() == licence
    for folder in (ROOT, ROOT / "kernels"):
        assert project(folder)["license"] == "Apache-2.0"
        assert project(folder)["license-files"] == ["LICENSE"]


def test_versions_agree() -> None:
    version = rlboost_jax.__version__
    assert rlboost_kernels.__version__ == version
    for folder, package in ((ROOT, "rlboost_jax"), (ROOT / "kernels", "rlboost_kernels")):
        dynamic = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["setuptools"]
        assert dynamic["dynamic"]["version"]["attr"] == f"{package}.__version__"
        assert all(project(folder)[key] for key in ("authors", "classifiers", "urls"))
    dated = re.search(r"^## \[(.+?)\] - \d{4}-\d\d-\d\d$", changes(), re.MULTILINE)
    assert dated and dated[1] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_names_the_formats_of_files() -> None:
    for line in (
        f"manager's journal: format {journal_entries.FORMAT}",
        f"environments' journal: format {episode_records.FORMAT}",
        f"corpus of the search tool: format {corpus.FORMAT}",
    ):
        assert line in changes()


def changes() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


UNCLAIMED = re.compile(r"pip install [^`]*\brlboost-(jax|kernels)|install '?rlboost-jax\[")


def test_nothing_says_to_install_us_from_an_index() -> None:
    """The names are nobody's there, and so anybody's."""
    names = ("git", "ls-files", "-z", "*.py", "*.md", "*.toml", "Makefile")
    listed = subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        assert not UNCLAIMED.search((ROOT / name).read_text(encoding="utf-8")), name


def test_the_folder_kernels_does_not_confuse_transformers(tmp_path: Path) -> None:
    """transformers looks for a package `kernels`; at our root there is a folder of that name."""
    torch_oracle("transformers")
    source = f"""
import sys
assert sys.path[0] == "", sys.path[0]
import torch, transformers
config = transformers.Qwen3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
)
model = transformers.Qwen3ForCausalLM(config).eval()
model.save_pretrained({str(tmp_path)!r})
again = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}).eval()
tokens = torch.arange(12)[None] % 64
with torch.no_grad():
    assert torch.equal(model(tokens).logits, again(tokens).logits)
print(transformers.__version__)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
