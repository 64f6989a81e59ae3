"""The command, its files, and what the summary says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.run import report, simulate
from rlboost_jax.simulator.systems import SYSTEMS
from tests.simulator.conftest import SMALL, make_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    config = make_config(market__instances=(0, 2), systems=tuple(SYSTEMS), num_seeds=2)
    folder = tmp_path_factory.mktemp("sim")
    return folder, simulate(config, folder)


def test_the_summary_by_its_own_steps(found):
    folder, told = found
    assert json.loads((folder / "summary.json").read_text()) == told
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    rates = {}
    for system in ("rlboost", "colocated"):
        for seed in (0, 1):
            own = [
                r for r in rows
                if (r["system"], r["market"], r["seed"]) == (system, "2 instances", seed)
            ]  # fmt: skip
            own = own[1:]
            tokens = sum(r["response_tokens"] for r in own)
            rates[system, seed] = tokens / sum(r["step_seconds"] for r in own)
    ratios = [rates["rlboost", seed] / rates["colocated", seed] for seed in (0, 1)]
    assert told["throughput_ratio_by_instances"]["2"] == pytest.approx(sum(ratios) / 2, abs=1e-4)
    assert set(told["cost_efficiency_by_instances"]) == {"0", "2"}


def test_every_system_is_there_and_ordered(found):
    _, told = found
    by = {(r["system"], r["instances"]): r for r in told["results"]}
    assert {system for system, _ in by} == set(SYSTEMS)
    assert by["colocated", 2]["throughput_ratio"] == 1.0
    assert by["colocated_2x", 2]["throughput_ratio"] > 1.05
    assert by["colocated_2x", 2]["cost_efficiency"] < 1.0
    assert by["rlboost", 2]["throughput_ratio"] > by["no_seeding", 2]["throughput_ratio"]
    # Instances at the reserved price are worth less than the same at the market's.
    assert by["disaggregated", 2]["cost_efficiency"] < by["rlboost", 2]["cost_efficiency"]
    assert by["rlboost", 2]["throughput_ratio_half_width"] >= 0
    assert "colocated_2x" in report(told)


def test_a_market_too_short_is_told(tmp_path):
    with pytest.raises(ValueError, match="2 whole steps, of which the first 3 are left out"):
        Outcome(make_config(), [{}, {}], settling=3)


def test_traces_and_hazards(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{60_000 * i},{'add' if i % 3 else 'remove'},n{i // 3}" for i in range(1, 12)]
    trace.write_text("0,add,n1\n0,add,n2\n0,add,n3\n" + "\n".join(lines[3:]))
    for changes in (
        {"market__kind": "trace", "market__path": str(trace), "market__segments": ((0.0, 0.1),)},
        {"market__kind": "hazard", "market__segments": ((0.0, 0.1), (0.1, 0.2))},
    ):
        config = make_config(num_steps=0, settling_steps=1, **changes)
        told = simulate(config, tmp_path / "run")
        assert "throughput_ratio_by_instances" not in told
        assert told["mean_over_markets"]["rlboost"]["throughput_ratio"] > 0.9


def test_the_command(tmp_path):
    flags = [f"--config.{name}={value}" for name, value in SMALL.items()]
    command = [
        sys.executable, "-m", "rlboost_jax.simulate", f"--workdir={tmp_path}",
        "--config=configs/sim/paper_14b_static.py", *flags,
        "--config.market.instances=(0, 1)", "--config.num_steps=2",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 instances" in done.stdout
    told = json.loads((tmp_path / "summary.json").read_text())
    assert list(told["throughput_ratio_by_instances"]) == ["0", "1"]


def test_a_mistake_on_the_command_line_is_one_line(tmp_path):
    command = [
        sys.executable, "-m", "rlboost_jax.simulate", f"--workdir={tmp_path}",
        "--config=configs/sim/base.py", "--config.engine.slotss=3",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("error: config.engine.slotss")
