"""The plan experiment: its README says what its results say, and it can be carried out."""

import json
from pathlib import Path

from experiments.plan import experiment

FOLDER = Path(experiment.__file__).parent
RESULTS = json.loads((FOLDER / "results.json").read_text())


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    assert experiment.summary(RESULTS["rows"]) == RESULTS["summary"]
    for name, row in RESULTS["summary"].items():
        trace, way = name.split()
        cells = " | ".join(
            f"{own['mean_ratio']:.3f}, {own['worst']:.3f} | {own['within_a_tenth']} of {own['of']}"
            for own in (row["seconds"], row["dollars"])
        )
        assert f"| {trace} | {way} | {cells} |" in text


def test_a_small_one_is_carried_out():
    rows = experiment.measure({}, small=True)
    assert [row["way"] for row in rows] == ["replayed", "fitted"]
    assert all(0.5 < row["seconds_ratio"] < 2.0 for row in rows)
