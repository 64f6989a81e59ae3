"""The plan refuses what an H100's compiler has no room for, and nothing else."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.chip import MEMORY_BYTES
from rlboost_jax.engine.device_memory import NotEnoughMemory
from rlboost_jax.learner.setup import fit
from rlboost_jax.settings.run_config import RunConfig

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h100.json"
ROWS = [r for r in json.loads(RESULTS.read_text())["rows"] if r["part"] == "learner"]
JOBS = {job: list(rows) for job, rows in groupby(ROWS, key=lambda row: str(row["job"]))}


def refused(run: RunConfig, limit: float) -> bool:
    try:
        fit.check(run, fit.needs(run), int(limit))
    except NotEnoughMemory:
        return True
    return False


@pytest.mark.parametrize("job", JOBS)
def test_the_plan_says_what_the_compiler_says(job: str) -> None:
    rows = JOBS[job]
    run = run_of(rows[0]["config"], tuple(map(int, rows[0]["mesh"].split(","))))
    assert refused(run, MEMORY_BYTES) != all(row["fits"] for row in rows)
    # Of the engine the compiler's figure has the weights, and the plan all that it must have.
    needs = fit.needs(run)
    rest = needs.total - needs.trees - needs.working - fit.least_needs(run).engine
    most = max(row["device_gib"] for row in rows) * 2**30
    assert refused(run, 0.99 * most)
    assert not refused(run, 1.13 * most + rest)


def test_there_are_rows_of_both_kinds() -> None:
    assert {all(row["fits"] for row in rows) for rows in JOBS.values()} == {True, False}
