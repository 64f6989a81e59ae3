"""The experiment of two runs on one fleet: its README says what its results say."""

import json
from pathlib import Path

import pytest

from experiments.two_jobs import experiment

FOLDER = Path(experiment.__file__).parent
RESULTS = [json.loads(line) for line in (FOLDER / "results.jsonl").read_text().splitlines()]


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for line in experiment.lines(RESULTS):
        assert f"{line}\n" in text


def test_results_are_those_of_all_cases_and_seeds():
    found = {(tuple(row["models"]), row["each"], row["together"], row["seed"]) for row in RESULTS}
    assert found == {(*case, seed) for case in experiment.CASES for seed in experiment.SEEDS}
    assert len(found) == len(RESULTS)


def rows_of(case):
    return [r for r in RESULTS if (tuple(r["models"]), r["each"], r["together"]) == case]


THREE_QUARTERS = [experiment.CASES[n] for n in (0, 3, 4)]  # of the machines, for ever


@pytest.mark.parametrize("case", THREE_QUARTERS)
def test_three_quarters_of_the_machines_are_enough_for_steps_as_long_as_before(case):
    """What each run loses at one seed the other gains, or it gains itself at the other seed."""
    rows = rows_of(case)
    assert all(experiment.total([row], "fleet_seconds") <= 0.8 for row in rows)
    longer = [experiment.longer(rows, "shared", run) for run in (0, 1)]
    assert sum(longer) / 2 <= 1.03
    assert max(longer) <= 1.06


def test_a_small_one_is_carried_out():
    """What is paid for is the whole fleet, whoever has it; how long steps are is no matter here."""
    case = ("14B", "14B"), 2, 4
    (row,) = experiment.measure([case], seeds=(0,), seconds=400.0, settling=1, small=True)
    assert row["handovers"] > 0
    shared, split = (sum(r["fleet_seconds"] for r in row[kind]) for kind in ("shared", "split"))
    assert 0.7 < shared / split < 1.3
