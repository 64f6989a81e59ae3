"""The speculation experiment: its README says what its results say, and it can be carried out."""

import json
from pathlib import Path

import pytest

from experiments.speculation import experiment

FOLDER = Path(experiment.__file__).parent
RESULTS = [json.loads(line) for line in (FOLDER / "results.jsonl").read_text().splitlines()]


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for line in experiment.lines(RESULTS):
        assert f"{line}\n" in text


def test_the_readme_says_what_the_table_says():
    text = (FOLDER / "README.md").read_text()
    for line in experiment.lines_by_table():
        assert f"{line}\n" in text


def test_one_engine_by_hand():
    """Three drafts in 226.1 ms for eight steps where there were 210.7: 1.875 tokens at one half."""
    found = experiment.by_table("qwen3_8b_openr1", 0.5)
    assert found == pytest.approx(1.875 * 210.7 / 226.1, rel=2e-3)


def test_results_are_those_of_the_cases():
    for preset, fleet in {(row["preset"], row["fleet"]) for row in RESULTS}:
        names = [case.name for case in experiment.CASES if case.everywhere or fleet == "4"]
        found = [row["case"] for row in RESULTS if (row["preset"], row["fleet"]) == (preset, fleet)]
        assert found == [name for name in names if name in found]


def test_a_small_one_is_carried_out():
    """Drafts save time where each slot has several responses; how much is no matter here."""
    few = {"presets": experiment.PRESETS[:1], "market_seeds": (), "seeds": (0,), "swept": 2}
    rows = {row["case"]: row for row in experiment.measure(**few, instances=(2,), small=True)}
    assert len(rows) == len(experiment.CASES)
    found = {name: row["throughput_ratio"]["mean"] for name, row in rows.items()}
    assert found["later epochs, 0.65"] > found["drafts 0.65"] > 1.05
