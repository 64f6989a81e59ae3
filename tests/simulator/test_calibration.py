"""Fits against what a run was made with: a simulation that writes what a real one does."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs import base as run_base
from configs.sim import base as sim_base
from rlboost_jax.manager.events import Record
from rlboost_jax.observe.events_file import FILE, EventsWriter, read_events
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.simulator.calibration.fits import non_negative, resampled
from rlboost_jax.simulator.calibration.observed import observed
from rlboost_jax.simulator.calibration.run_calibration import calibrate
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.sim_config_loading import sim_config, to_dict
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

BASE = to_dict(sim_config(sim_base.get_config()))
LAW = (0.004, 0.0005, 2e-7)  # seconds of a decode step, and per sequence, and per token of context


def table(slots, factor=1.0):
    """The law on a grid on which it is exact."""
    fixed, each, context = (factor * term for term in LAW)
    return tuple(
        (float(batch), float(length), fixed + batch * (each + context * length))
        for batch in (1, slots)
        for length in (0, 4000)
    )


def run_config(**changes):
    config = run_base.get_config()
    config.learner.prompts_per_step = 16
    config.learner.micro_batch_prompts = 2
    config.algorithm.group_size = 4
    config.sampling.max_response_tokens = 1000
    config.engine.max_prompt_tokens = 200
    config.engine.slots = 32
    config.engine.steps_per_dispatch = 8
    config.manager.window_initial_seconds = 2.0
    config.update_from_flattened_dict(changes)
    return run_config_from_dict(config.to_dict())


TWO = static(2).changes


def simulated_run(folder, changes=TWO, **others):
    """A run of 16 prompts x 4 responses, and the rows of its steps."""
    config = make_config(
        workload__mean_tokens=200.0,
        policy__window_initial_seconds=2.0,
        workload__max_response_tokens=1000,
        engine__table=table(32),
        engine__reserved_table=table(32, 0.5),
        engine__prefill_token_seconds=2e-5,
        engine__message_tokens=8,
        trainer__deterministic=True,
        trainer__token_seconds=1e-4,
        trainer__micro_batch_seconds=0.05,
        trainer__apply_seconds=0.0,
        trainer__switch_seconds=0.0,
        trainer__begin_seconds=0.3,
        links__host_bytes_per_second=29.54e9 / 0.2,
        links__latency_seconds=0.4,
        links__receiver_bytes_per_second=60e9,
        links__sender_bytes_per_second=1e15,
        links__load_bytes_per_second=250e9,
        num_steps=10,
        **others,
    )
    world = World(config, changes, seed=3, seconds=1e6)
    perform = world._perform
    with EventsWriter(folder) as writer:

        def performed(action):
            if isinstance(action, Record):
                writer.write(
                    time=1e9 + world.clock.now,
                    step=action.step,
                    kind=action.kind,
                    instance=action.instance,
                    detail=action.detail,
                )
            perform(action)

        world._perform = performed
        for engine in world.reserved:  # they joined as the world was made
            config_of = world.manager.view.instances[engine.stream].hello
            writer.write(
                time=1e9,
                step=-1,
                kind="joined",
                instance=world.manager.view.instances[engine.stream].name,
                detail={
                    "reserved": True,
                    "slots": config_of.slots,
                    "price_per_hour": config_of.price_per_hour,
                },
            )
        rows = world.run()
    return config, rows


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config, rows = simulated_run(folder)
    return folder, config, rows, calibrate(run_config(), folder, base=BASE, settling=2)


def test_a_fit_finds_what_the_run_was_made_with(fitted):
    *_, rows, found = fitted
    values = {name: own["value"] for name, own in found["parameters"].items()}
    for name, factor in (("instance", 1.0), ("reserved", 0.5)):
        # A step of a typical batch and context, by the law: single terms are less well known.
        for batch, length in ((8, 350), (24, 400)):
            fixed, each, context = (
                values[f"{name}.{term}"] for term in ("per_step", "per_token", "per_context_token")
            )
            seconds = factor * (LAW[0] + batch * (LAW[1] + LAW[2] * length))
            assert fixed + batch * (each + context * length) == pytest.approx(seconds, rel=0.1)
    assert values["trainer.per_token"] == pytest.approx(1e-4, rel=0.02)
    assert values["trainer.per_step"] == pytest.approx(8 * 0.05, rel=0.02)
    assert values["beginning"] == pytest.approx(0.3)
    assert values["publishing"] == pytest.approx(0.2)
    assert values["pull"] == pytest.approx(0.4 + 29.54 / 60 + 29.54 / 250, rel=1e-3)
    assert values["length_tokens"] == pytest.approx(
        np.mean([r["response_length_mean"] for r in rows[2:]])
    )


def test_the_other_half_of_the_steps_is_predicted(fitted):
    *_, found = fitted
    assert found["check"]["fitted_steps"] == found["check"]["predicted_steps"] == 4
    assert found["check"]["ratio"] == pytest.approx(1.0, abs=0.05)


def test_the_steps_of_the_events_are_those_that_were_reported(fitted):
    folder, _, rows, _ = fitted
    seen = observed(folder, settling=2)
    for step in seen.steps:
        assert step.seconds == pytest.approx(rows[step.step]["step_seconds"])
        assert sum(map(sum, step.groups)) == rows[step.step]["response_tokens"]
    assert seen.reserved_engines == 2


def test_a_simulation_takes_what_was_written(fitted):
    folder, _, rows, found = fitted
    path = str(folder / "calibration.json")
    config = make_config(calibration=path, market__instances=(2,))
    assert config.engine.table == tuple(map(tuple, found["settings"]["engine"]["table"]))
    assert config.num_steps == 4  # what no run tells stays
    again = World(replace(config, num_steps=10), TWO, seed=0, seconds=1e6).run()
    own = np.mean([r["step_seconds"] for r in rows[4:]])
    assert np.mean([r["step_seconds"] for r in again[4:]]) == pytest.approx(own, rel=0.15)
    lengths = response_lengths(config.workload, seed=5, step=1).reshape(16, 4)
    assert {tuple(group) for group in lengths.tolist()} <= set(config.workload.groups)


def test_the_fleet_is_the_runs(tmp_path):
    """Who joined and left, and when; a new one joins 10 s after it was ordered."""
    changes = (*TWO, MachineChange(15.0, False, "machine1"), MachineChange(20.0, True, "late"))
    simulated_run(tmp_path, changes)
    seen = observed(tmp_path, settling=1)
    assert [(c.added, c.machine) for c in seen.changes] == [
        (True, "local-1"),
        (True, "local-2"),
        (False, "local-1"),
        (True, "local-3"),
    ]
    begun = 0.3  # of the first step's requests
    assert [c.seconds for c in seen.changes] == pytest.approx(
        [0.0, 0.0, 16.5 - begun, 30.0 - begun]
    )
    assert seen.starts == pytest.approx((0.0, 0.0, 10.0))


def test_only_whole_steps_count(fitted, tmp_path):
    """A run that was killed twice: after step 2 was trained, and in the middle of step 5."""
    whole = {step.step: step for step in observed(fitted[0], settling=1).steps}
    events = read_events(fitted[0])
    again = next(e for e in events if e["kind"] == "joined" and e["detail"]["reserved"])
    resumed = {**events[0], "kind": "resumed", "step": 5, "detail": {}}
    first = next(n for n, e in enumerate(events) if e["kind"] == "begun" and e["step"] == 2)
    three = next(n for n, e in enumerate(events) if e["kind"] == "begun" and e["step"] == 3)
    five = next(n for n, e in enumerate(events) if e["kind"] == "begun" and e["step"] == 5)
    pause = [{**event, "time": event["time"] + 1000.0} for event in [again, *events[first:]]]
    killed = [*events[:three], *pause[: five - first + 2], resumed, *pause[five - first + 2 :]]
    (tmp_path / FILE).write_text("".join(json.dumps(event) + "\n" for event in killed))
    seen = observed(tmp_path, settling=1)
    assert [step.step for step in seen.steps] == [1, 2, 3, 4, 6, 7, 8, 9]
    for step in seen.steps:
        assert step.seconds == pytest.approx(whole[step.step].seconds)
        assert sum(work.tokens for work in step.work) == sum(
            work.tokens for work in whole[step.step].work
        )


def test_what_only_measures_is_no_step(fitted, tmp_path):
    whole, events = observed(fitted[0], settling=1), read_events(fitted[0])
    last = [event for event in events if event["step"] == 9]
    final = [
        {**event, "step": 10, "time": event["time"] + 10.0}
        for event in last
        if event["kind"] in ("begun", "trained")
    ]
    final[-1]["detail"] = {**final[-1]["detail"], "lengths": []}
    lines = [json.dumps(event) + "\n" for event in [*events, *final]]
    (tmp_path / FILE).write_text("".join(lines))
    assert observed(tmp_path, settling=1).steps == whole.steps


def test_the_command_finds_its_default_from_anywhere(tmp_path):
    write_run_config(tmp_path, run_config(), "a-run")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'kernels'}"}
    command = [sys.executable, "-m", "rlboost_jax.cli.calibrate", f"--workdir={tmp_path}"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stderr.startswith(f"error: {tmp_path}/events.jsonl: 0 whole steps")


def test_too_few_steps_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="0 whole steps after the first 2; 2 are needed"):
        observed(tmp_path, settling=2)


@pytest.mark.parametrize("text", ["", "[]", '{"settings": [1]}', '{"set": {}}'])
def test_a_calibration_of_no_use_is_reported_in_a_line(tmp_path, text):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"calibration: cannot read .*`rlboost calibrate`"):
        make_config(calibration=str(path))


def test_non_negative_least_squares_by_its_conditions():
    """Karush, Kuhn and Tucker: x ≥ 0, a gradient ≥ 0, and one of both is 0."""
    random = np.random.default_rng(1)
    for _ in range(200):
        rows, columns = int(random.integers(3, 30)), int(random.integers(1, 6))
        matrix = random.normal(size=(rows, columns)) * 10.0 ** random.integers(-6, 6, columns)
        values = random.normal(size=rows)
        found = non_negative(matrix, values)
        gradient = matrix.T @ (matrix @ found - values) / np.linalg.norm(matrix, axis=0)
        assert (found >= 0).all()
        assert (gradient >= -1e-8).all()
        assert (np.abs(gradient[found > 0]) <= 1e-8).all()


def test_resampling_gives_the_standard_error_of_a_mean():
    values = np.random.default_rng(2).normal(5.0, 2.0, 400).tolist()
    (width,) = resampled(lambda drawn: {"mean": float(np.mean(drawn))}, values).values()
    assert width == pytest.approx(1.96 * np.std(values) / math.sqrt(400), rel=0.15)


def test_groups_must_be_whole():
    with pytest.raises(ConfigError, match=r"workload.groups has \(1, 2\); give 4 lengths"):
        make_config(workload__groups=((1, 2),))


def test_measured_lengths_are_drawn_by_group_and_cut(make):
    work = replace(
        make().workload,
        groups=((1, 2, 3, 4), (10, 20, 30, 5000)),
        prompts_per_step=500,
        max_response_tokens=100,
    )
    lengths = response_lengths(work, seed=0, step=0).reshape(500, 4).tolist()
    counts = [lengths.count([1, 2, 3, 4]), lengths.count([10, 20, 30, 100])]
    assert sum(counts) == 500 and abs(counts[0] - 250) < 45  # four standard deviations
    assert json.dumps(lengths)
