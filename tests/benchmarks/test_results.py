"""Files of benchmarks/results: what made each row is in the tree, and no row is impossible."""

import importlib.util
import json
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_table
from benchmarks.gpu_figures import beats_its_bound
from benchmarks.h100 import chip
from benchmarks.h100.jobs import all_jobs

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = sorted(FOLDER.glob("*.json"))


def read(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


STAGES = read("gpu.json")["stages"]
ROWS = read("h100.json")["rows"]


def records(value):
    """All objects, however deep."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from records(item)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_command_of_the_readme_makes_each_file(path):
    text = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"-m (benchmarks[\w.]*)[^\n]*benchmarks/results/{path.name}", text)
    assert found, f"no command of benchmarks/README.md writes {path.name}"
    assert all(importlib.util.find_spec(module) for module in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_measured_value_beats_its_bound(path):
    for record in records(read(path.name)):
        if "bound" in record and "value" in record:
            assert not beats_its_bound(record), record


@cache
def cases(stage):
    return gpu.cases_of(stage)(tiny=False)


@pytest.mark.parametrize("stage", STAGES)
def test_each_figure_of_a_gpu_is_one_of_its_stage(stage):
    """By the name that the stage gives it today, in full size."""
    names = [figure["name"] for figure in STAGES[stage]["figures"]]
    assert names and len(set(names)) == len(names)
    assert not set(names) - set(cases(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_says_what_it_was_measured_on(stage):
    machine = STAGES[stage]["machine"]
    assert {"device", "driver", "jax"} <= set(machine)
    bounded = [known for known in STAGES[stage]["figures"] if known["bound"] is not None]
    assert not bounded or chip.sheet_of(machine["device"])


def test_attention_that_is_mostly_reading_is_near_its_bound_and_not_above():
    """4 GB of keys and values at 3.06 TB/s: 0.64 of an H200's 4.8, 0.91 of an H100's 3.35."""
    found = {known["name"]: known for known in STAGES["bandwidth"]["figures"]}
    largest = found["mosaic_gpu: 4295 MB, 128 x 8192"]
    assert largest["bound"] == 4.8
    assert largest["value"] / largest["bound"] == pytest.approx(0.64, abs=0.01)


def test_rows_of_the_table_are_those_of_its_jobs():
    assert {row["job"] for row in ROWS} == {str(job) for job in all_jobs()}
    assert not [row["program"] for row in ROWS if "failed" in row]


def test_every_row_of_one_device_can_be_measured():
    """But for the plain form of attention in an engine, which no GPU would choose."""
    alone = {row["job"] for row in ROWS if row["devices"] == 1 and not row["job"].endswith("auto")}
    jobs = [*gpu_table.kernel_jobs(), *gpu_table.model_jobs()]
    assert alone == {str(job) for job in jobs}


def test_bounds_are_what_each_resource_takes():
    """Kernels launched by a graph included."""
    for row in ROWS:
        seconds = row["seconds"]
        launches = row["kernels"] * chip.LAUNCH_SECONDS
        assert seconds["launches"] == pytest.approx(launches, rel=1e-3), row
        assert row["seconds_serial"] == pytest.approx(sum(seconds.values()), rel=1e-3), row
        assert row["seconds_overlapped"] == pytest.approx(max(seconds.values()), rel=1e-3), row
        least = max(
            row["model_flops"] / chip.FLOPS["bf16"], row["model_gb"] * 1e9 / chip.MEMORY_RATE
        )
        assert row["seconds_least"] == pytest.approx(least, rel=2e-3), row


def test_launches_show_what_a_mixture_of_experts_costs():
    """15,000 kernels a step: 19 ms, of which the sum had none."""
    (row,) = (
        row
        for row in ROWS
        if row["job"] == "engine qwen3_30b_a3b_moe mosaic_gpu" and row["program"].startswith("dec")
    )
    assert row["seconds"]["launches"] / 8 == pytest.approx(19.5e-3, rel=0.05)
    assert row["seconds"]["launches"] > 0.6 * row["seconds_serial"]
