"""The experiment of two runs on one fleet: its README says what its results say."""

import json
from pathlib import Path

from experiments.two_jobs import experiment

FOLDER = Path(experiment.__file__).parent
RESULTS = [json.loads(line) for line in (FOLDER / "results.jsonl").read_text().splitlines()]


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for line in experiment.lines(RESULTS):
        assert f"{line}\n" in text


def test_results_are_those_of_all_cases():
    found = [(tuple(row["models"]), row["each"], row["together"]) for row in RESULTS]
    assert found == [*experiment.CASES]


def test_runs_with_few_reserved_devices_save_a_fifth_of_the_fleet():
    fixed, market = RESULTS[:2]
    longer = [[experiment.longer([row], "shared", n) for n in (0, 1)] for row in (fixed, market)]
    assert all(experiment.total([row], "fleet_seconds") <= 0.8 for row in (fixed, market))
    assert sum(longer[0]) / 2 <= 1.03, "both together: they began at one moment"
    assert max(longer[1]) <= 1.03


def test_a_small_one_is_carried_out():
    """What is paid for is the whole fleet, whoever has it; how long steps are is no matter here."""
    case = ("14B", "14B"), 2, 4
    (row,) = experiment.measure([case], seconds=400.0, settling=1, small=True)
    assert row["handovers"] > 0
    shared, split = (sum(r["fleet_seconds"] for r in row[kind]) for kind in ("shared", "split"))
    assert 0.7 < shared / split < 1.3
