"""The calibration experiment: its README says what its results say, and the fit finds a law."""

import json
from pathlib import Path

from experiments.calibration import experiment
from rlboost_jax.simulator.calibration.run_calibration import FILE

FOLDER = Path(experiment.__file__).parent
RESULTS = json.loads((FOLDER / "results.json").read_text())


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for result in RESULTS.values():
        check = result["check"]
        row = (
            f"| {check['fitted_steps']}, {check['predicted_steps']} "
            f"| {check['predicted_seconds']:.2f} "
            f"| {check['measured_seconds']:.2f} ± {check['measured_half_width']:.2f} "
            f"| {check['ratio']:.2f} |"
        )
        assert row in text
        assert abs(check["ratio"] - 1) < 0.1


def test_results_are_collected_from_runs(tmp_path):
    for name, result in RESULTS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(json.dumps({**result, "settings": {}}))
    assert experiment.collect({name: tmp_path / name for name in RESULTS}) == RESULTS


def test_a_known_law_lies_within_the_intervals():
    for row in experiment.known_law().values():
        assert abs(row["found"] - row["true"]) < 2 * row["half_width"]
        assert row["half_width"] < row["true"]
