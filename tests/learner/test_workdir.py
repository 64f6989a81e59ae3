"""Whose folder it is, and that a start which was killed is no obstacle to the next."""

import hashlib
import os
from dataclasses import replace

import pytest

from configs import tiny
from rlboost_jax.learner.workdir import Workdir, WorkdirUnusable, check_code, check_usable, is_held
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.config_loading import (
    Origin,
    read_changes,
    read_code,
    read_run_config,
    read_run_id,
    run_config,
    write_run_config,
)

RUN = run_config(tiny.get_config())
FORK = Origin(workdir="/runs/a", run_id="f00d", step=0)


@pytest.mark.parametrize("left", [[], ["lock"], ["config.json.part"], ["lock", "config.json.part"]])
def test_what_a_start_that_was_killed_has_left_is_no_obstacle(tmp_path, left):
    for name in left:
        (tmp_path / name).write_text('{"run_id": "ha')
    with Workdir(tmp_path, RUN) as workdir:
        assert workdir.run_id
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "config.json"}
    with Workdir(tmp_path, RUN) as again:
        assert again.run_id == workdir.run_id


def test_the_checkpoint_may_have_moved_but_not_changed_its_shape(tmp_path):
    first, moved = (replace(RUN, model=replace(RUN.model, source=name)) for name in ("a", "b"))
    with Workdir(tmp_path, first) as before:
        pass
    with Workdir(tmp_path, moved) as after:
        assert after.run_id == before.run_id and after.config_changed
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    other = replace(moved, model=replace(RUN.model, family="llama"))
    with pytest.raises(WorkdirUnusable, match=r"model\.family"):
        Workdir(tmp_path, other).__enter__()


def test_code_from_outside_that_has_changed_is_another_run(tmp_path, monkeypatch):
    """By the bytes of its file; a run without an update begins anew with it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_loss.py").write_text("def loss(ratio): return ratio, ratio > 9\n")
    named = {"algorithm": replace(RUN.algorithm, surrogate="own_loss:loss")}
    run, folder = replace(RUN, **named), tmp_path / "run"
    with Workdir(folder, run):
        pass
    digest = hashlib.sha256((tmp_path / "own_loss.py").read_bytes()).hexdigest()
    assert read_code(folder) == {"own_loss:loss": digest}
    (tmp_path / "own_loss.py").write_text("def loss(ratio): return ratio, ratio > 8\n")
    with Workdir(folder, run) as again:
        assert again.replaced
        again.begin_anew()
    assert read_code(folder) != {"own_loss:loss": digest}
    (folder / "checkpoints" / "7").mkdir(parents=True)
    check_usable(folder, run)
    (tmp_path / "own_loss.py").write_text("def loss(ratio): return ratio, ratio > 7\n")
    checks = (check_usable, check_code, lambda *given: Workdir(*given).__enter__())
    for refuse in checks:
        with pytest.raises(WorkdirUnusable, match=r"surrogate 'own_loss:loss': .*own_loss\.py has"):
            refuse(folder, run)


def changed(run, **settings):
    """Change settings of the run's learner."""
    return replace(run, learner=replace(run.learner, **settings))


@pytest.mark.parametrize("committed", ["checkpoints/7", "checkpoints/7.broken", "best/12"])
def test_only_a_run_without_an_update_begins_anew(tmp_path, committed):
    """It does so in the same folder once the mistake is mended; others' files stay."""
    with Workdir(tmp_path, RUN) as first:
        pass
    for name in ("checkpoints/0", "checkpoints/1.part", "reference/0", "journal"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "mine.py").write_text("precious")
    mended = replace(changed(RUN, attention="dense"), seed=9)
    with Workdir(tmp_path, mended) as again:
        assert again.replaced == first.run_id
        assert read_run_config(tmp_path) == RUN, "nothing is touched before its manager is gone"
        again.begin_anew()
        assert again.run_id != first.run_id
        again.go_on(0)
    assert read_run_config(tmp_path) == mended and read_run_id(tmp_path) == again.run_id
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"lock", "config.json", "mine.py"}
    (tmp_path / committed).mkdir(parents=True)
    with pytest.raises(WorkdirUnusable, match=r"another configuration \(seed: 9 → 0; learner.att"):
        Workdir(tmp_path, RUN).__enter__()


@pytest.mark.parametrize(("updates", "fork"), [(8, None), (0, None), (8, FORK)])
def test_another_mesh_before_the_first_update_has_a_warm_up_of_its_own(tmp_path, updates, fork):
    """Without a warm-up, parameters have the same bits on every mesh; a fork has had its own."""
    run = replace(RUN, warmup=replace(RUN.warmup, max_updates=updates))
    with Workdir(tmp_path, run, fork=fork):
        pass
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    with Workdir(tmp_path, changed(run, mesh=(1, 4, 1))) as other:
        assert bool(other.replaced) == (updates == 8 and fork is None)
    (tmp_path / "checkpoints" / "4").mkdir()
    with Workdir(tmp_path, changed(run, mesh=(1, 4, 1))) as other:
        assert not other.replaced
        other.go_on(4)
    assert [str(each) for each in read_changes(tmp_path)] == [
        "step 4: learner.mesh (1, 1, 1) → (1, 4, 1)"
    ]


def test_a_run_with_a_row_of_metrics_is_not_replaced(tmp_path):
    with Workdir(tmp_path, RUN):
        pass
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(WorkdirUnusable, match=r"another configuration"):
        Workdir(tmp_path, replace(RUN, seed=9)).__enter__()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n'


def test_a_kl_term_needs_the_model_that_the_run_began_with(tmp_path):
    with_kl = replace(RUN, algorithm=replace(RUN.algorithm, kl_coefficient=0.1))
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    write_run_config(tmp_path, RUN, "f00d")
    with pytest.raises(WorkdirUnusable, match=r"algorithm\.kl_coefficient: 0\.0 → 0\.1"):
        Workdir(tmp_path, with_kl).__enter__()
    (tmp_path / "reference").mkdir()  # it was 0.1 once, and 0.0 since
    with Workdir(tmp_path, with_kl) as workdir:
        workdir.go_on(3)
    assert [str(each) for each in read_changes(tmp_path)] == [
        "step 3: algorithm.kl_coefficient 0.0 → 0.1"
    ]


def test_a_change_is_recorded_once_its_step_is_known(tmp_path):
    with Workdir(tmp_path, RUN):
        pass
    second = changed(RUN, learning_rate=1e-3)
    with Workdir(tmp_path, second):
        pass  # it died before it had read a checkpoint
    assert read_run_config(tmp_path) == RUN and not read_changes(tmp_path)
    with Workdir(tmp_path, second) as workdir:
        workdir.go_on(2)
    expected = [Change(step=2, name="learner.learning_rate", before=3e-4, value=1e-3)]
    for _ in range(2):  # the same command again
        with Workdir(tmp_path, second) as workdir:
            workdir.go_on(3)
        assert list(read_changes(tmp_path)) == expected == list(workdir.changes)
        assert read_run_config(tmp_path) == second


def test_a_run_gets_no_shorter_than_it_is(tmp_path):
    with (
        Workdir(tmp_path, RUN) as workdir,
        pytest.raises(WorkdirUnusable, match="num_steps is 4, and 5 steps are done"),
    ):
        workdir.go_on(5)


def test_what_else_lies_there_is(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(WorkdirUnusable, match="holds 1 files and no config"):
        Workdir(tmp_path, RUN).__enter__()


def test_it_is_held_while_a_trainer_works_there(tmp_path):
    assert not is_held(tmp_path)
    with Workdir(tmp_path, RUN):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def fresh(folder):
    (folder / "lock").touch()


def begun(folder):
    with Workdir(folder, RUN):
        pass


def trained(folder):
    begun(folder)
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')


def foreign(folder):
    (folder / "thesis.tex").write_text("precious")


def a_file(folder):
    folder.rmdir()
    folder.write_text("precious")


def missing(folder):
    folder.rmdir()


@pytest.mark.parametrize("made", [fresh, begun, trained, foreign, a_file, missing])
@pytest.mark.parametrize("wanted", [RUN, replace(RUN, seed=9)], ids=["same", "other"])
def test_the_look_ahead_of_imports_refuses_what_the_start_would(tmp_path, made, wanted):
    """In the same words, but for the system's own, and it writes nothing."""
    folder = tmp_path / "run"
    folder.mkdir()
    made(folder)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    said = refusal(lambda: check_usable(folder, wanted))
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    begins = refusal(lambda: Workdir(folder, wanted).__enter__())
    assert begins == (said and said.replace("Not a directory", "File exists"))
    refused = made in (foreign, a_file) or (made is trained and wanted is not RUN)
    assert (said is not None) == refused


def test_the_look_ahead_of_imports_leaves_to_devices_what_they_choose(tmp_path):
    trained(tmp_path)
    check_usable(tmp_path, changed(RUN, attention="dense"))
    with pytest.raises(WorkdirUnusable, match=r"learner\.attention"):
        Workdir(tmp_path, changed(RUN, attention="dense")).__enter__()


def test_the_look_ahead_of_imports_sees_who_is_at_work(tmp_path):
    with Workdir(tmp_path, RUN):
        ahead = refusal(lambda: check_usable(tmp_path, RUN))
        assert ahead == refusal(lambda: Workdir(tmp_path, RUN).__enter__())
        assert f"in use by process {os.getpid()}" in ahead
    check_usable(tmp_path, RUN)


def refusal(what):
    """What is said, or None."""
    try:
        what()
    except WorkdirUnusable as error:
        return str(error)
    return None
