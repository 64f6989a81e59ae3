"""`rlboost plan` as a program: what it prints and writes, and a line for each mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
from experiments.simulated import TINY
from configs.sim import base

def get_config():
    config = base.get_config("14b")
    config.update_from_flattened_dict(TINY)
    return config
"""
PRICES = """
date = 2026-02-03
[[instances]]
name = "cheap"
price_per_hour = 1.5
speed = 0.7
max_instances = 2
[[instances]]
name = "other"
device = "A100-80GB"
chips = 2
price_per_hour = 2.5
max_instances = 1
"""


def program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    source += "from rlboost_jax.cli.commands import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", source, "plan", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(SMALL)
    (tmp_path / "prices.toml").write_text(PRICES)
    return tmp_path


def test_it_prints_a_table_and_settings_and_writes_the_plan(folder: Path) -> None:
    done = program(
        "--config=small.py", "--prices=prices.toml", "--total=2", "--steps=3", "--settling=1",
        "--seeds=2", "--processes=1", "--deadline_hours=1000", "--run_steps=50", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "50 steps; speeds: the simulation's: rooflines of a data sheet"
    assert lines[1] == "prices of 2026-02-03: check them yourself"
    assert lines[2].split() == [
        "mix", "hours", "±", "worst", "dollars", "±", "worst", "tokens/$", "late"
    ]  # fmt: skip
    found = json.loads((folder / "plan.json").read_text())
    assert found["exact"] and found["simulated"] + found["ruled_out"] == found["mixes"] == 5
    assert f"to have {found['chosen']}:" in done.stdout
    for row in found["rows"]:
        assert row["needs_deterministic_false"] == (row["counts"][1] > 0)
        assert row["late"] == 0.0 and len(row["dollars_by_seed"]) == 2
    marked = [line for line in lines if "<- chosen" in line]
    assert len(marked) == 1 and marked[0].startswith(found["chosen"])
    pools = [line for line in found["settings"] if '"name"' in line]
    assert all(f"    {line}" in lines for line in pools)
    assert max(map(len, lines[:5])) < 140


def test_the_example_is_printed_to_begin_with(tmp_path: Path) -> None:
    done = program("--prices=example", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == (ROOT / "configs" / "sim" / "prices.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no --prices given; name a price list, or --prices=example"),
        (["--prices=prices.toml"], "neither --config nor --workdir given"),
        (["--prices=none.toml", "--config=base"], "--prices=none.toml: No such file"),
        (
            ["--prices=prices.toml", "--config=quickstart"],
            "run it for some steps and give --workdi",
        ),
        (["--prices=prices.toml", "--config=paper_14b_statc"], "no file and no name"),
        (
            ["--prices=prices.toml", "--config=sim/base", "--config.num_stepz=1"],
            "config.num_steps?",
        ),
        (
            ["--prices=prices.toml", "--config=paper_14b_static", "--steps=4", "--settling=4"],
            "--settling is 4 of 4 simulated steps; lower it",
        ),
        (
            ["--prices=prices.toml", "--config=sim/base", "--mean_tokens=99999"],
            "--mean_tokens is 99999, and a response has 14336 at most; lower it",
        ),
        (["--prices=prices.toml", "--workdir=nowhere"], "nowhere"),
        (["--prices=prices.toml", "--config=sim/base", "--risk=2"], "risk"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, folder: Path) -> None:
    done = program(*arguments, cwd=folder)
    assert done.returncode == 2, done.stdout
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ") and words in done.stderr
