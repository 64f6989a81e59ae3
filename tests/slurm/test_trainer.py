"""A trainer of two processes as one job of a real Slurm, by the file that its page has for copying.

The cluster has one node, so both processes are on it: what differs from two nodes is who has which
devices, which `tests/learner/processes/test_process_group.py` is about. Most of a minute: for
`make test-slurm`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_blocks import blocks_of
from tests.slurm.test_real import of_slurm
from tests.system.harness import REPOSITORY, TINY, Run, prepared, wait_until
from tests.system.test_processes import SMALL

pytestmark = [pytest.mark.system, pytest.mark.soak]

PAGE = "docs/how-to/trainer-on-slurm.md"


def submit(environment: dict[str, str], script: Path, run: Run) -> str:
    """The number of a job that runs the page's file with two processes."""
    options = ("--nodes=1", "--ntasks=2", "--ntasks-per-node=2", f"--chdir={REPOSITORY}")
    overrides = [f"--config.{each}" for each in SMALL]
    cache = f"--config.compile_cache_dir={os.environ['JAX_COMPILATION_CACHE_DIR']}"
    words = ("sbatch", "--parsable", *options, f"--output={run.workdir}.log", str(script))
    found = subprocess.run(
        (*words, str(TINY), str(run.workdir), cache, *overrides),
        env={**os.environ, **environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def state(environment: dict[str, str], job: str) -> str:
    line = of_slurm(
        environment, "squeue", "--noheader", "--states=all", f"--jobs={job}", "-O", "State"
    )
    return line.strip()


def test_the_pages_file_trains_on_two_processes(slurm: dict[str, str], tmp_path: Path) -> None:
    (text,) = (block.text for block in blocks_of(PAGE) if block.text.startswith("#!/bin/sh"))
    script = tmp_path / "train.sh"
    # Of the tests, in place of what a user has on his path; and a node of other jobs' as well.
    script.write_text(
        text.replace(" python ", f" {sys.executable} ").replace("#SBATCH --exclusive\n", "")
    )
    with prepared(tmp_path / "run", *SMALL) as run:
        job = submit(slurm, script, run)
        said = Path(f"{run.workdir}.log")
        wait_until(lambda: state(slurm, job) not in ("PENDING", "RUNNING", "COMPLETING"), "its end")
        assert state(slurm, job) == "COMPLETED", said.read_text()[-4000:]
        assert len(run.metrics()) == 3 and len(run.digests()) == 3
        run.assert_accounts_hold()
