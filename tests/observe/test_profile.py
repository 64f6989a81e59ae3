import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from configs import base
from rlboost_jax.observe.chrome_trace import spans_path, trace_path
from rlboost_jax.observe.profile import StepProfile
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.observe_config import ObserveConfig
from tests.observe.traces import Trace, load

LINE = {"process": "a", "name": "dispatch", "lane": "engine", "seconds": 1.0, "args": {}}


@pytest.fixture
def observe() -> ObserveConfig:
    return replace(run_config(base.get_config()).observe, profile_step=2)


def steps(profile: StepProfile, first: int, last: int) -> None:
    for step in range(first, last + 1):
        profile.at(step)
        with profile.spans.span("step", "learner", number=step):
            pass


def collected(workdir: Path, start: float) -> None:
    """As the manager does."""
    path = spans_path(workdir, 2)
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(LINE | {"start": start}) + "\n")


def test_it_is_written_when_the_step_after_is_over(observe: ObserveConfig, tmp_path: Path) -> None:
    notes: list[str] = []
    profile = StepProfile(observe, tmp_path, note=notes.append)
    profile.clock.asked(0.0)
    profile.clock.answered(500.5, 1.0)  # the manager's is 500 s ahead
    steps(profile, 0, 3)
    (own,) = profile.spans._spans
    collected(tmp_path, own.start + 500.0)
    assert not trace_path(tmp_path, 2).exists() and not notes
    steps(profile, 4, 5)
    trace = Trace(load(trace_path(tmp_path, 2)))
    (step,) = trace.spans("trainer", "learner", "step")
    (dispatch,) = trace.spans("a", "engine")
    assert step["args"] == {"number": 2}
    assert abs(step["ts"] - dispatch["ts"]) < 0.1, "one time axis"
    assert trace.other["clock_error_seconds"] == {"trainer": 0.5}
    profile.close()
    assert len(notes) == 1 and "step_2.trace.json.gz" in notes[0]


def test_a_run_that_ends_with_the_step_has_its_profile(
    observe: ObserveConfig, tmp_path: Path
) -> None:
    with StepProfile(observe, tmp_path, note=lambda line: None) as profile:
        steps(profile, 0, 2)
    assert Trace(load(trace_path(tmp_path, 2))).spans("trainer", "learner", "step")


def test_a_step_that_is_done_again_is_profiled_again(
    observe: ObserveConfig, tmp_path: Path
) -> None:
    collected(tmp_path, 1.0)  # by a run that died in the step
    with StepProfile(observe, tmp_path, note=lambda line: None) as profile:
        steps(profile, 2, 3)
    assert not Trace(load(trace_path(tmp_path, 2))).spans("a", "engine")


def test_what_comes_before_the_step_begins_is_of_it(observe: ObserveConfig, tmp_path: Path) -> None:
    """Its version is pulled while the step before ends."""
    collected(tmp_path, 1.0)  # by a run that died in the step
    with StepProfile(observe, tmp_path, note=lambda line: None) as profile:
        steps(profile, 0, 1)
        collected(tmp_path, 2.0)
        steps(profile, 2, 3)
    (pulled,) = Trace(load(trace_path(tmp_path, 2))).spans("a", "engine")
    assert pulled["ts"] == 0.0, "the first of all"


def test_a_person_is_warned_of_spans_there_was_no_room_for(
    observe: ObserveConfig, tmp_path: Path
) -> None:
    notes: list[str] = []
    collected(tmp_path, 1.0)
    with StepProfile(observe, tmp_path, note=notes.append) as profile:
        profile.at(2)
        with open(spans_path(tmp_path, 2), "a") as file:
            for dropped in (1_000, 234):
                line = {"process": "manager", "clock_error": 0.0, "dropped": dropped}
                file.write(json.dumps(line) + "\n")
    assert notes[0].endswith("no room for spans: 1,234 of manager")
    assert load(trace_path(tmp_path, 2))["otherData"]["dropped_spans"]["manager"] == 1_234


def test_nothing_happens_where_no_step_is_asked_for(observe: ObserveConfig, tmp_path: Path) -> None:
    with StepProfile(replace(observe, profile_step=0), tmp_path, note=print) as profile:
        steps(profile, 0, 3)
    with StepProfile(observe, tmp_path, note=print) as profile:
        steps(profile, 3, 5)  # went on after it
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_the_run_goes_on(
    observe: ObserveConfig, tmp_path: Path
) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    with StepProfile(observe, tmp_path / "file" / "run", note=notes.append) as profile:
        profile._unwritten = True
    assert len(notes) == 1 and "step 2 was profiled in vain" in notes[0]


def test_jax_traces_the_learners_process_in_that_step_only(
    observe: ObserveConfig, tmp_path: Path
) -> None:
    with StepProfile(replace(observe, profile_jax=True), tmp_path, note=print) as profile:
        for step in range(4):
            profile.at(step)
            jax.block_until_ready(jax.jit(lambda x, s=step: x + s)(jnp.ones(3)))
    assert len(list((tmp_path / "profile" / "jax").rglob("*.xplane.pb"))) == 1
