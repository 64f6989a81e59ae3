"""The command, its files, and what the summary says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.simulation_run import report, simulate
from rlboost_jax.simulator.systems import SYSTEMS
from tests.patience import PATIENCE_SECONDS
from tests.simulator.conftest import SMALL, make_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    config = make_config(market__instances=(0, 2), systems=tuple(SYSTEMS), num_seeds=2)
    folder = tmp_path_factory.mktemp("sim")
    return folder, simulate(config, folder)


def test_the_summary_by_its_own_steps(found):
    folder, summary = found
    assert json.loads((folder / "summary.json").read_text()) == summary
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
    assert summary["throughput_ratio_by_instances"]["2"] == pytest.approx(sum(ratios) / 2, abs=1e-4)
    assert set(summary["cost_efficiency_by_instances"]) == {"0", "2"}
    row = next(r for r in summary["results"] if (r["system"], r["instances"]) == ("rlboost", 2))
    # Of two seeds: Student's t with one degree of freedom is Cauchy's, 97.5 % at 12.706.
    half = 12.706 * abs(ratios[0] - ratios[1]) / 2
    assert row["throughput_ratio_half_width"] == pytest.approx(half)
    assert row["throughput_ratio_over_rlboost"] == 1.0
    assert row["throughput_ratio_over_rlboost_half_width"] == 0.0


def test_every_system_is_there_and_ordered(found):
    _, summary = found
    by = {(r["system"], r["instances"]): r for r in summary["results"]}
    assert {system for system, _ in by} == set(SYSTEMS)
    assert by["colocated", 2]["throughput_ratio"] == 1.0
    assert by["colocated_2x", 2]["throughput_ratio"] > 1.05
    assert by["colocated_2x", 2]["cost_efficiency"] < 1.0
    assert by["rlboost", 2]["throughput_ratio"] > by["no_seeding", 2]["throughput_ratio"]
    # Instances at the reserved price are worth less than the same at the market's.
    assert by["disaggregated", 2]["cost_efficiency"] < by["rlboost", 2]["cost_efficiency"]
    # One engine for eight without a node of its own: nothing is generated, and that is said.
    assert by["disaggregated", 0]["tokens_per_second"] == 0.0
    assert (
        by["disaggregated", 0]["throughput_ratio"] == by["disaggregated", 0]["cost_efficiency"] == 0
    )
    assert "step_seconds" not in by["disaggregated", 0]
    assert "colocated_2x" in report(summary)


def test_a_market_too_short_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="settling_steps is 3 and 2 whole steps fit the market"):
        Outcome(make_config(), [{}, {}], settling=3)


def test_the_files_are_json_as_everyone_reads_it(tmp_path):
    """Instances that cannot pay at any discount: null, not Infinity."""
    config = make_config(
        market__instances=(0, 1), num_steps=2, systems=("disaggregated",),
        reserved__price_per_node_hour=1e-9, instance__egress_dollars_per_gb=9.0,
    )  # fmt: skip
    simulate(config, tmp_path)

    def refuse(constant):
        raise AssertionError(constant)

    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    for line in (tmp_path / "steps.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert summary["results"][-1]["break_even_discount"] is None


def test_traces_and_hazards(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{60_000 * i},{'add' if i % 3 else 'remove'},n{i // 3}" for i in range(1, 12)]
    trace.write_text("0,add,n1\n0,add,n2\n0,add,n3\n" + "\n".join(lines[3:]))
    for changes in (
        {"market__kind": "trace", "market__path": str(trace), "market__segments": ((0.0, 0.1),)},
        {"market__kind": "hazard", "market__segments": ((0.0, 0.1), (0.1, 0.2))},
    ):
        config = make_config(num_steps=0, settling_steps=1, **changes)
        summary = simulate(config, tmp_path / "run")
        assert "throughput_ratio_by_instances" not in summary
        assert summary["mean_over_markets"]["rlboost"]["throughput_ratio"] > 0.9


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, "has no rows"),
        ("0,add,a\n", {}, "ends as it begins; give market.segments"),
        ("0,add,a\n6,remove,a\n", {"market__keep_fraction": 0.1}, "keeps none of the 1 machines"),
        (
            "0,add,a\n60000,remove,a\n",
            {"market__segments": ((1.0, 2.0),)},
            "ends at 0.01667 h; choose an earlier one",
        ),
        ("0,add,a\n9000,remove,a\n", {}, "0 whole steps fit the market"),
        ("0,3\n5,1000000000\n", {}, "line 2 of"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, 1.5]}', {}, "1.5 is no count"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1, 1]}', {}, "nan s apart"),
    ],
)
def test_a_trace_of_no_use_is_reported_in_a_line(tmp_path, text, changes, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    config = make_config(num_steps=0, market__kind="trace", market__path=str(path), **changes)
    with pytest.raises(ConfigError, match=message) as error:
        simulate(config, tmp_path / "run")
    assert "market." in str(error.value) or "settling_steps" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_market_that_never_has_a_machine_is_no_mistake(tmp_path):
    config = make_config(
        num_steps=0, settling_steps=0, market__kind="hazard", market__segments=((0.0, 0.02),),
        market__hazard__machines=0.1, market__hazard__lifetime_hours=100.0,
    )  # fmt: skip
    summary = simulate(config, tmp_path)
    assert summary["mean_over_markets"]["rlboost"]["throughput_ratio"] == pytest.approx(
        1.0, abs=0.05
    )


def test_the_command(tmp_path):
    flags = [f"--config.{name}={value}" for name, value in SMALL.items()]
    command = [
        sys.executable, "-m", "rlboost_jax.simulate", f"--workdir={tmp_path}",
        "--config=configs/sim/paper_14b_static.py", *flags,
        "--config.market.instances=(0, 1)", "--config.num_steps=2",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "1 instances" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary["throughput_ratio_by_instances"]) == ["0", "1"]


def test_a_mistake_on_the_command_line_is_one_line(tmp_path):
    command = [
        sys.executable, "-m", "rlboost_jax.simulate", f"--workdir={tmp_path}",
        "--config=configs/sim/base.py", "--config.engine.slotss=3",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("error: config.engine.slotss")
