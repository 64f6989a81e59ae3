"""The published evaluation: its files agree, and a small variant of it runs."""

import json

import pytest

from configs.sim import base
from configs.sim.h100 import REACHED
from experiments.paper_evaluation import compare, evaluate, rates
from experiments.simulated import outcome
from tests.simulator.conftest import make_config


def test_the_table_is_that_of_the_results():
    stored = json.loads((compare.FOLDER / "results.json").read_text())
    assert compare.compared(compare.FOLDER) == stored
    assert compare.table(stored) in (compare.FOLDER / "README.md").read_text()


def test_a_small_variant():
    config = make_config(num_steps=8)
    row = evaluate.ratios(config, "rlboost", (1,), seed=0)["1"]
    by_hand = (
        row["tokens_per_second"] / outcome("colocated_static", config, 0, seed=0).tokens_per_second
    )
    assert row["throughput_ratio"] == pytest.approx(by_hand)
    assert row["throughput_ratio"] > 1.0


def test_what_the_baseline_does():
    found = evaluate.colocated(seed=0, config_of=lambda model: make_config())["14b"]
    assert 0 < found["rollout_share"] < 1
    assert 1.0 < found["twice"] <= 2.2  # more room for the cache, too


def test_rows_are_means_over_seeds(tmp_path):
    """And what was not simulated has none."""
    folder = tmp_path / "paper_evaluation"
    (folder / "results").mkdir(parents=True)
    (tmp_path / "static_fleet").mkdir()
    segments = {
        "0": {"means": {"throughput_ratio": 1.5}},
        "1": {"means": {"throughput_ratio": 1.7}},
    }
    (folder / "results" / "segments_8b.json").write_text(json.dumps(segments))
    static = {
        "14b": {
            "0": {"throughput_ratio": {"mean": 1.05, "half_width": 0.1}},
            "1": {"throughput_ratio": {"mean": 1.26, "half_width": 0.2}},
        }
    }
    (tmp_path / "static_fleet" / "results.json").write_text(json.dumps(static))
    rows = compare.compared(folder)
    assert [row["name"] for row in rows] == [
        "14B, 1 instance: throughput",
        "14B, 1 instance over none: throughput",
        "8B, segments: throughput",
    ]
    assert [row["simulated"] for row in rows] == pytest.approx([1.26, 1.2, 1.6])
    assert rows[2]["half_width"] == pytest.approx(12.706 * 0.1)  # Student's t of two
    line = "| 8B, segments: throughput | 1.66 | 1.60 | 1.27 | 0.96 |"
    assert line in compare.table(rows)


def test_shares_of_the_data_sheet_are_those_of_the_table():
    """To two digits; of the overhead of a step the table knows a part."""
    found = rates.of_table(json.loads(rates.TABLE.read_text())["rows"])
    overhead = found.pop("engine.step_overhead_seconds")
    config = base.get_config()
    for name, value in found.items():
        section, field = name.split(".")
        assert config[section][field] == pytest.approx(value, abs=0.005), name
    assert 0 < overhead < config.engine.step_overhead_seconds


def test_shares_of_rows_that_were_made_by_hand():
    """Gradients are three of a learner's five passes for 14B and 32B, and four for 8B."""
    decode = {
        "job": "engine qwen3_14b_openr1 mosaic_gpu",
        "program": "decode mosaic_gpu",
        "seconds": {"arithmetic": 0.01, "hbm": 9.0, "collectives": 0.006},  # of eight steps
    }
    learners = []
    for model, nodes, reference in (("8b", 1, 1), ("14b", 1, 0), ("32b", 2, 0)):
        params, layers, heads = base.MODELS[model]
        rows, tokens = 8 * nodes, 1000
        forward = rows * (2 * params * tokens + 4 * layers * heads * 128 * tokens**2 / 2)
        each = forward / (nodes * 8 * 989e12)  # seconds of a pass at the data sheet's rate
        job = f"learner qwen3_{model}_openr1 1,{rows},1"
        gradients = {"program": f"gradients {rows} x 1,000", "model_flops": 3.0 + reference}
        gaps = {"program": "gaps", "model_flops": 1.0, "mfu_serial": 0.6}
        learners += [
            {"job": job, **gradients, "seconds_serial": (5 + reference) * each},
            {"job": job, **gaps, "seconds_serial": each},
        ]
    # Six passes' worth in seven times the seconds of one.
    assert rates.of_table([decode, *learners]) == {
        "engine.memory_efficiency": REACHED,
        "engine.compute_efficiency": pytest.approx(0.6 * REACHED),
        "engine.step_overhead_seconds": pytest.approx(0.002 / REACHED),
        "trainer.compute_efficiency": pytest.approx(6 / 7 * REACHED),
    }
