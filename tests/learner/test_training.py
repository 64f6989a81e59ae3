"""How a run ends and what it leaves, with the loop and the manager faked."""

import dataclasses
import json
import shutil
import threading
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from rlboost_jax.learner.setup import preparation
from rlboost_jax.learner.state import init_state
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.observe.console import Console
from rlboost_jax.observe.isolated_tracker import IsolatedTracker
from rlboost_jax.observe.metrics import read_metrics, read_rows
from rlboost_jax.observe.summary import headline
from rlboost_jax.qualification.engine_start import trainer_run
from rlboost_jax.qualification.trial_host import Host
from rlboost_jax.qualification.trial_records import KernelVerdict, Trial
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.memory_estimates import learner_bytes
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.learner.doubles import (
    FINAL,
    FINAL_ACCURACY,
    FINAL_REPORT,
    MAKERS,
    STEPS,
    Link,
    Loop,
    finished,
    quick,
    train,
)
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def run(config):
    """A run of 3 steps."""
    return dataclasses.replace(
        config,
        num_steps=STEPS,
        warmup=dataclasses.replace(config.warmup, max_updates=0),
        observe=dataclasses.replace(config.observe, live=False, trackers=()),
    )


def on_a_gpu(verdict_of):
    """What `trainer_run` chooses on a host whose trials come to this."""
    host = Host(gpu_expected=lambda: True, facts=lambda: None, verdict_of=verdict_of)
    return partial(trainer_run, host=host)


def noting(lines):
    """A console whose notes are kept."""

    class Noting(Console):
        def note(self, text):
            lines.append(text)

    return Noting


def steps(workdir):
    return [row["step"] for row in read_metrics(workdir)]


def test_the_fleet_is_shown_while_nothing_arrives(run, tmp_path):
    shown = threading.Event()

    class Watched(Console):
        def fleet(self, status):
            shown.set()

    class Waiting(Loop):
        def step(self, step):
            Link.last.status = "a fleet"
            assert shown.wait(PATIENCE_SECONDS)
            return super().step(step)

    train(run, tmp_path, Waiting, console=Watched)


def test_the_engine_leaves_room_for_the_learner(run, tmp_path):
    taken = []

    def engine_of(run, *, taken_bytes, devices):
        taken.append(taken_bytes)
        return SimpleNamespace(memory="memory: a plan", fingerprint="")

    train(run, tmp_path, engine=engine_of, programs=partial(quick, working_bytes=700))
    assert taken == [sum(learner_bytes(run).values()) + 700]


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_is_chosen_for_a_gpu_runs_and_is_reported(run, tmp_path, deterministic):
    """Servers get it only where all engines have to run the same."""
    run = dataclasses.replace(run, deterministic=deterministic)
    trial = Trial(candidate="xla", outcome="right", seconds=0.001)
    verdict = KernelVerdict(platform="gpu", device="NVIDIA H100", trials=(trial,))
    built, lines = [], []

    def engine_of(given, **options):
        built.append(given.engine.attention)
        return MAKERS.engine(given, **options)

    train(
        run,
        tmp_path,
        kernels=on_a_gpu(lambda spec: verdict),
        engine=engine_of,
        console=noting(lines),
    )
    assert built == ["xla"]
    assert any(text.startswith("engine.attention on NVIDIA H100: xla, 1 ms") for text in lines)
    kept = read_run_config(tmp_path).engine.attention
    assert kept == ("xla" if deterministic else "auto")


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_is_chosen_for_a_learner_is_what_it_runs(run, tmp_path, deterministic):
    """It is kept in a deterministic run; any other chooses again at its next start."""
    run = dataclasses.replace(
        run,
        deterministic=deterministic,
        model=dataclasses.replace(run.model, dtype="bfloat16"),
        learner=dataclasses.replace(run.learner, row_tokens=2048, pack_rows=4),
    )
    right = {"learner_attention": "chunked", "engine_attention": "xla"}

    def verdict_of(spec):
        trial = Trial(candidate=right[spec.problem], outcome="right", seconds=0.001)
        return KernelVerdict(platform="gpu", device="NVIDIA H100", trials=(trial,))

    built, lines = [], []

    def programs_of(given, mesh):
        built.append(given.learner.attention)
        return quick(given, mesh)

    train(
        run,
        tmp_path,
        kernels=on_a_gpu(verdict_of),
        programs=programs_of,
        console=noting(lines),
    )
    assert built == ["chunked"]
    assert any(text.startswith("learner.attention on NVIDIA H100: chunked") for text in lines)
    kept = read_run_config(tmp_path).learner.attention
    assert kept == ("chunked" if deterministic else "auto")


class Saving(Loop):
    """Checkpoints of a state that stays as it is."""

    def __init__(self, session):
        super().__init__(session)
        self.session = session

    def save(self, step):
        self.session.checkpoints.save(step, self.session.state, {})


def test_rows_are_on_disk_before_the_checkpoint_after_them_is_said_to_be(run, tmp_path):
    seen = {}

    class Looking(Link):
        def committed(self, batch):
            seen[batch] = steps(tmp_path)

    train(run, tmp_path, Saving, link=Looking)
    assert seen.keys() == set(range(STEPS))
    assert all(rows[: batch + 1] == list(range(batch + 1)) for batch, rows in seen.items())


def test_a_run_is_over_once_its_last_checkpoint_is_durable(run, tmp_path):
    said = []

    class Noting(Link):
        def committed(self, batch):
            said.append(f"committed {batch}")

        def end(self, reason, *, over):
            said.append(reason)
            return super().end(reason, over=over)

    train(run, tmp_path, Saving, link=Noting)
    assert said == [*(f"committed {batch}" for batch in range(STEPS)), "the run is over"]


class Interrupted(Loop):
    """At its second checkpoint."""

    def save(self, step):
        if step == 2:
            raise KeyboardInterrupt


def test_a_run_stopped_at_a_checkpoint_has_the_rows_up_to_it(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, Interrupted)
    assert steps(tmp_path) == [0, 1]
    assert Link.last.reason == "the trainer stopped: KeyboardInterrupt"
    assert not Link.last.over, "the tokens of the step under way are kept"
    assert not (tmp_path / "report.html").exists()


def test_summary_and_report_tell_the_accuracy_after_the_last_update(run, tmp_path):
    summary = train(run, tmp_path)
    assert (summary.first_accuracy, summary.last_accuracy) == (0.5, FINAL_ACCURACY)
    *_, final = read_rows(tmp_path)
    assert (final["step"], final["final"], final["accuracy"]) == (STEPS, True, FINAL_ACCURACY)
    assert (summary.instances_lost, summary.instances_left, summary.tokens_lost) == (1, 1, 4)
    assert summary.steps == STEPS == len(read_metrics(tmp_path)), "it is of no step"
    assert json.loads((tmp_path / "summary.json").read_text()) == dataclasses.asdict(summary)
    page = (tmp_path / "report.html").read_text()
    assert headline(summary) in page and f"{FINAL_ACCURACY:.3f}" in page
    assert Link.last.reason == "the run is over" and Link.last.over


def test_a_last_version_that_cannot_be_written_is_reported_and_the_run_is_complete(
    run, tmp_path, capsys
):
    begun = threading.Event()

    class Full(SnapshotStore):
        def write(self, *_):
            begun.set()
            raise OSError("no space left")

    class Publishing(Loop):
        def final_score(self):
            self.publisher.submit(STEPS, {}, "digest")
            assert begun.wait(PATIENCE_SECONDS)
            return FINAL, FINAL_REPORT

    assert train(run, tmp_path, Publishing, snapshots=Full).steps == STEPS
    assert (tmp_path / "report.html").exists()
    assert "version 3 could not be published: no space left" in capsys.readouterr().out


def tracked_by(board):
    """Makes a tracker beside the run's own, in a thread, as `chosen_trackers` does."""
    return lambda *_, note, **__: [IsolatedTracker("tensorboard", lambda: board, note=note)]


def test_a_tracker_that_fails_is_reported_once_and_the_run_is_complete(run, tmp_path, capsys):
    def step(row):
        raise OSError("no room for events")

    board = SimpleNamespace(
        samples=lambda rows: None, step=step, finish=lambda summary: None, close=lambda: None
    )
    assert train(run, tmp_path, trackers=tracked_by(board)).steps == STEPS
    assert steps(tmp_path) == [0, 1, 2]
    assert capsys.readouterr().out.count("no room for events") == 1


def test_a_run_that_learns_nothing_says_so_while_it_runs(run, tmp_path):
    class Equal(Loop):
        def step(self, step):
            return finished(step, rewards=(0.0, 0.0), stop_ids=self.stop_ids)

    lines = []
    train(run, tmp_path, Equal, console=noting(lines))
    (warning,) = [line for line in lines if line.startswith("warning: steps")]
    assert "steps 0 to 2: every reward was 0" in warning


def test_trackers_hear_of_the_summary_once_the_run_is_complete(run, tmp_path):
    calls = []
    board = SimpleNamespace(
        samples=lambda rows: None,
        step=lambda row: calls.append("step"),
        evaluated=lambda row: calls.append("evaluated"),
        finish=lambda summary: calls.append("finish"),
        close=lambda: calls.append("close"),
    )
    train(run, tmp_path, trackers=tracked_by(board))
    assert calls == ["step"] * STEPS + ["evaluated", "finish", "close"]
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "another", Interrupted, trackers=tracked_by(board))
    assert calls == ["step", "step", "close"]


def test_the_reference_is_the_starting_parameters_and_nothing_else(config, learner_step, tmp_path):
    run = dataclasses.replace(
        config, algorithm=dataclasses.replace(config.algorithm, kl_coefficient=0.1)
    )
    learner = learner_step()

    def state(seed):
        return init_state(init_params(run.model, seed), learner.optimizer, learner.shardings)

    start = params_digest(state(0).params)
    for later in (0, 1):  # at the first start, and when going on
        reference = preparation._reference(run, tmp_path, learner, state(later))
        assert params_digest(reference) == start
        shardings = jax.tree.map(lambda leaf: leaf.sharding, reference)
        assert shardings == learner.shardings.params
    layout = (tmp_path / "reference" / "0" / "state" / "_METADATA").read_text()
    assert "attention" in layout and "opt_state" not in layout
    shutil.rmtree(tmp_path / "reference")
    one_on = dataclasses.replace(state(0), step=jnp.int32(1))
    with pytest.raises(preparation.ReferenceGone, match="reference is gone"):
        preparation._reference(run, tmp_path, learner, one_on)  # that one is no start
    assert preparation._reference(config, tmp_path, learner, state(0)) is None


def test_a_run_begins_with_the_parameters_of_its_source(config, learner_step, tmp_path):
    other = init_params(config.model, 7)
    write_checkpoint(config.model, other, tmp_path, dtype="float32")
    run = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, source=str(tmp_path)),
        warmup=dataclasses.replace(config.warmup, max_updates=0),
    )
    with Console(num_steps=1, live=False) as console:
        state = preparation._start(run, tmp_path, learner_step(), console)
    assert params_digest(state.params) == params_digest(other)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    assert shardings == learner_step().shardings.params
