"""The speculation experiment: its README says what its results say, and it can be carried out."""

import json
from pathlib import Path

from experiments.speculation import experiment

FOLDER = Path(experiment.__file__).parent
RESULTS = [json.loads(line) for line in (FOLDER / "results.jsonl").read_text().splitlines()]


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for line in experiment.lines(RESULTS):
        assert f"{line}\n" in text


def test_results_are_those_of_all_cases():
    names = [name for name, _, _ in experiment.cases()]
    fleets = len({(row["preset"], row["fleet"]) for row in RESULTS})
    assert [row["case"] for row in RESULTS] == names * fleets


def test_a_small_one_is_carried_out():
    """Drafts save time where each slot has several responses; how much is no matter here."""
    few = {"presets": experiment.PRESETS[:1], "market_seeds": (), "seeds": (0,)}
    rows = {row["case"]: row for row in experiment.measure(**few, instances=(2,), small=True)}
    assert len(rows) == len(list(experiment.cases()))
    plain, drafts = rows["no drafts"], rows["drafts 0.65"]
    assert drafts["throughput_ratio"]["mean"] > 1.05 * plain["throughput_ratio"]["mean"]
