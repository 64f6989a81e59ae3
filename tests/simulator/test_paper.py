"""The published evaluation: its files agree, and a small variant of it runs."""

import json

import pytest

from experiments.paper_evaluation import compare, evaluate
from tests.simulator.conftest import make_config


def test_the_table_is_that_of_the_results():
    stored = json.loads((compare.FOLDER / "results.json").read_text())
    assert compare.compared(compare.FOLDER) == stored
    assert compare.table(stored) in (compare.FOLDER / "README.md").read_text()


def test_a_small_variant():
    found = evaluate.ratios(make_config(num_steps=8), (1,), seed=0)
    assert found["colocated"]["0"]["rollout_seconds"] > 0
    row = found["rlboost"]["1"]
    by_hand = row["tokens_per_second"] / found["colocated"]["0"]["tokens_per_second"]
    assert row["throughput_ratio"] == pytest.approx(by_hand)
    assert row["throughput_ratio"] > 1.0


def test_a_row_is_the_mean_over_the_seeds_that_have_it(tmp_path):
    def part(ratio: float) -> dict[str, object]:
        row = {"throughput_ratio": ratio, "cost_efficiency": 1.0}
        return {"rlboost": {"1": row, "0": {"throughput_ratio": 1.0}}}

    (tmp_path / "results").mkdir()
    found = {"0": part(1.3), "1": part(1.5), "2": {}}
    (tmp_path / "results" / "static_14b.json").write_text(json.dumps(found))
    rows = {row["name"]: row for row in compare.compared(tmp_path)}
    row = rows["14B, 1 instance: throughput"]
    assert row["simulated"] == pytest.approx(1.4)
    assert row["half_width"] == pytest.approx(12.706 * 0.1)  # Student's t of two
    assert "14B, 6 instances: throughput" not in rows
    line = "| 14B, 1 instance: throughput | 1.37 | 1.40 | 1.27 | 1.02 |"
    assert line in compare.table([row])
