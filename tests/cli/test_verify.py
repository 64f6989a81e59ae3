"""`python -m rlboost_jax verify`: a line a file, and the exit status."""

import random
from pathlib import Path

import numpy as np
import pytest

from configs import tiny
from rlboost_jax.cli.verify import main
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.checkpoints.origin import keep_origin
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.settings.config_loading import run_config, write_run_config


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("run")
    write_run_config(workdir / "config.json", run_config(tiny.get_config()), "a run")
    keep_origin(workdir, "")
    for name, step in {"base": 0, "checkpoints": 4}.items():
        with Checkpoints(workdir / name, keep=2) as checkpoints:
            checkpoints.save(step, {"w": np.arange(9.0)}, {})
            if name == "checkpoints":
                BestCheckpoint(workdir, checkpoints).offer(step, 0.5)
    return workdir


def verified(workdir: Path, capsys) -> tuple[int, list[str]]:
    code = main([f"--workdir={workdir}"])
    return code, capsys.readouterr().out.splitlines()


def test_all_that_has_digests_has_a_line(made, capsys):
    code, lines = verified(made, capsys)
    assert code == 0 and lines[-1] == "all is sound"
    places = [line.split()[1].rstrip(":") for line in lines[:-1]]
    assert places == [
        *("config.json", "origin.json", "best/best.json"),
        *("checkpoints/4", "best/4", "base/0"),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_file_that_has_changed_is_named_and_the_status_is_1(made, capsys, seed):
    draw = random.Random(seed)
    names = ("config.json", "origin.json", "best/best.json", "base/0/extra/metadata")
    path = made / draw.choice([*names, "base/0/digests.json"])
    before = path.read_bytes()
    data = bytearray(before)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(7)
    path.write_bytes(data)
    code, lines = verified(made, capsys)
    path.write_bytes(before)
    broken = [line for line in lines if line.startswith("BROKEN")]
    name = path.relative_to(made).as_posix()
    assert code == 1 and any(name in line for line in broken)
    assert verified(made, capsys)[0] == 0


def test_one_that_is_gone_or_of_before(made, capsys):
    path = made / "base" / "0" / "digests.json"
    digests = path.read_bytes()
    path.unlink()
    code, lines = verified(made, capsys)
    assert code == 1 and "BROKEN  base/0/digests.json: it is missing" in lines
    (path.parent / "_CHECKPOINT_METADATA").touch()
    code, lines = verified(made, capsys)
    assert code == 0 and "sound   base/0: an earlier release wrote it, without digests" in lines
    (path.parent / "_CHECKPOINT_METADATA").unlink()
    path.write_bytes(digests)


def test_another_folder_is_a_mistake(tmp_path, capsys):
    assert main([f"--workdir={tmp_path}"]) == 2
    assert "has no config.json; give the workdir of a run" in capsys.readouterr().err
