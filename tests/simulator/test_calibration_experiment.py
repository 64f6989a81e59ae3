"""The calibration experiment: its README says what its results say, and its figure shows them."""

import json
import xml.etree.ElementTree
from pathlib import Path

from experiments.calibration import evaluate
from rlboost_jax.simulator.calibration import FILE

FOLDER = Path(evaluate.__file__).parent
RESULTS = json.loads((FOLDER / "results.json").read_text())


def test_the_readme_says_what_was_found():
    text = (FOLDER / "README.md").read_text()
    for told in RESULTS.values():
        check = told["check"]
        row = (
            f"| {check['fitted_steps']}, {check['predicted_steps']} "
            f"| {check['predicted_seconds']:.2f} "
            f"| {check['measured_seconds']:.2f} ± {check['measured_half_width']:.2f} "
            f"| {check['ratio']:.2f} |"
        )
        assert row in text
        assert abs(check["ratio"] - 1) < 0.1


def test_the_figure_is_that_of_the_results():
    assert (FOLDER / "figure.svg").read_text() == evaluate.figure(RESULTS)
    points = xml.etree.ElementTree.fromstring(evaluate.figure(RESULTS)).iter(
        "{http://www.w3.org/2000/svg}circle"
    )
    assert len(list(points)) == sum(len(told["check"]["steps"]) for told in RESULTS.values())


def test_results_are_collected_from_runs(tmp_path):
    for name, told in RESULTS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(json.dumps({**told, "settings": {}}))
    assert evaluate.collect({name: tmp_path / name for name in RESULTS}) == RESULTS
