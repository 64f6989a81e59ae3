"""A complete run is known by its files, and nothing is started for it."""

from dataclasses import replace

import pytest

from configs import tiny
from rlboost_jax.learner.setup.complete import complete
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.training import run_training
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import metrics_row, read_metrics
from rlboost_jax.observe.summary import summarize, write_summary
from rlboost_jax.settings.config_loading import run_config, write_run_config
from tests.learner.doubles import Manager
from tests.observe.conftest import row

STEPS = 4


@pytest.fixture
def run():
    return run_config(tiny.get_config())


@pytest.fixture
def path(tmp_path, run):
    """Folder of a complete run."""
    assert run.num_steps == STEPS
    write_run_config(tmp_path, run, "a-run")
    with FilesTracker(tmp_path) as files:
        for step in range(STEPS):
            files.step(metrics_row(row(step)))
    (tmp_path / "checkpoints" / str(STEPS)).mkdir(parents=True)
    write_summary(tmp_path, summarize(read_metrics(tmp_path), reserved_price_per_hour=1.0))
    tmp_path.chmod(0o700)
    return tmp_path


def test_nothing_is_started(run, path, capsys):
    def never(*_):
        raise AssertionError("kernels are chosen for a run that is complete")

    summary = run_training(run, path, makers=Makers(kernels=never))
    assert summary.steps == STEPS
    assert capsys.readouterr().out.startswith("complete: all 4 steps are done")


def test_a_manager_that_its_trainer_has_left_is_seen_off(run, path):
    """The trainer was killed between its last file and its goodbye."""
    seen_off = []

    class Left(Manager):
        def see_off(self):
            seen_off.append(self)

    run_training(run, path, makers=Makers(manager=Left))
    assert len(seen_off) == 1


@pytest.mark.parametrize("before", [None, "of fewer steps"])
def test_a_report_that_its_trainer_has_not_put_in_place_is_written(run, path, before):
    """The trainer was killed as it wrote the report, the first or one after more steps."""
    if before is not None:
        (path / "report.html").write_text(before)
        (path / "report.html.part").write_text("torn")
    run_training(run, path, makers=Makers(manager=Manager))
    written = (path / "report.html").read_text()
    assert "<html" in written and not (path / "report.html.part").exists()
    (path / "report.html").write_text("a person's")
    run_training(run, path, makers=Makers(manager=Manager))
    assert (path / "report.html").read_text() == "a person's", "one that is whole stays"


def test_more_steps_go_on(run, path):
    assert complete(run, path) is not None
    assert complete(replace(run, num_steps=STEPS + 1), path) is None


def test_another_configuration_is_left_to_the_check_that_refuses_it(run, path):
    assert complete(replace(run, seed=run.seed + 1), path) is None


@pytest.mark.parametrize(
    "missing", ["summary.json", "config.json", "metrics.jsonl", "checkpoints/4"]
)
def test_what_lacks_anything_is_not_complete(run, path, missing):
    gone = path / missing
    gone.rmdir() if gone.is_dir() else gone.unlink()
    assert complete(run, path) is None


def test_a_folder_in_use_is_not_looked_at(run, path):
    with Workdir(path, run):
        assert complete(run, path) is None
