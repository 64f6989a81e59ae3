"""The published evaluation: its files agree, and a small variant of it runs."""

import json
from pathlib import Path

import pytest

from experiments.paper_evaluation import compare, evaluate
from tests.simulator.conftest import make_config

FOLDER = Path(evaluate.__file__).parent


def test_the_table_is_that_of_the_results(tmp_path):
    (tmp_path / "results").mkdir()
    for path in FOLDER.glob("results/*.json"):
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    table = compare.compare(tmp_path)
    stored = json.loads((FOLDER / "results.json").read_text())
    assert json.loads((tmp_path / "results.json").read_text()) == stored
    assert table in (FOLDER / "README.md").read_text()


def test_a_small_variant():
    found = evaluate.ratios(make_config(num_steps=8), (1,))
    assert found["colocated"]["0"]["rollout_seconds"] > 0
    row = found["rlboost"]["1"]
    by_hand = row["tokens_per_second"] / found["colocated"]["0"]["tokens_per_second"]
    assert row["throughput_ratio"] == pytest.approx(by_hand)
    assert row["throughput_ratio"] > 1.0
