"""Checkpoints that are whole and in the wrong place, and folders that hold something else.

A start names what is wrong in one line, goes on from the newest that is sound, and deletes nothing.
"""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs import tiny
from rlboost_jax.cli.verify import main as verify
from rlboost_jax.learner.checkpoints import best, folders
from rlboost_jax.learner.checkpoints.fallback import newest_sound
from rlboost_jax.learner.checkpoints.forking import origin_of
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken, damage, read_params
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.kept_versions import restored_versions
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.settings.config_loading import Origin, run_config, write_run_config

ABSTRACT = {"params": {"w": np.zeros(4, np.float32)}}
RUN = run_config(tiny.get_config())


def state_of(step: int):
    return {"params": {"w": np.full(4, step, np.float32)}}


def run_in(workdir: Path, run_id: str, *steps: int, fork: Origin | None = None) -> Path:
    """A workdir whose run has made these checkpoints."""
    workdir.mkdir(exist_ok=True)
    write_run_config(workdir / "config.json", RUN, run_id, fork=fork)
    with Checkpoints(workdir / "checkpoints", keep=9) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step), {"step": step})
    return workdir


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_in(folder / "run", "a" * 32, 37, 38, 39, 40)
    run_in(folder / "other", "b" * 32, 40, 41)
    return folder


@pytest.fixture
def workdir(template, tmp_path) -> Path:
    """A run of its own with checkpoints 37 to 40; `other` beside it is another run."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def copied(step: int, name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(folder / str(step), folder / name)

    return change


def swapped(first: str, second: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / first).rename(folder / "kept")
        (folder / second).rename(folder / first)
        (folder / "kept").rename(folder / second)

    return change


def of_another_run(folder: Path) -> None:
    shutil.copytree(folder.parent.parent / "other" / "checkpoints" / "41", folder / "41")


def without_digests(folder: Path) -> None:
    """What was being written when a process died, by its part's name until somebody renamed it."""
    copied(40, "41")(folder)
    (folder / "41" / at_rest.FILE).unlink()


def a_file(folder: Path) -> None:
    (folder / "41").write_text("what somebody keeps here")


def a_loop(folder: Path) -> None:
    (folder / "41").symlink_to(folder / "41")


def a_pipe(folder: Path) -> None:
    path = folder / "40" / "extra" / "metadata"
    path.unlink()
    os.mkfifo(path)


def a_folder_for_a_file(folder: Path) -> None:
    path = folder / "40" / "extra" / "metadata"
    path.unlink()
    path.mkdir()


def a_linked_folder(folder: Path) -> None:
    (folder / "40" / "state" / "more").symlink_to(folder / "39" / "state")


def resealed(**values) -> Callable[[Path], None]:
    """Digests with other values that are sealed as they should be."""

    def change(folder: Path) -> None:
        path = folder / "40" / at_rest.FILE
        path.unlink()  # a second name of it is of another copy
        at_rest.write_sealed(path, {"files": {}, "step": 40, **values})

    return change


def resumed(workdir: Path) -> tuple[int, list[str]]:
    """The step that a start goes on from, and what it says."""
    notes: list[str] = []
    with Checkpoints(workdir / "checkpoints", keep=9) as checkpoints:
        found = newest_sound(checkpoints, ABSTRACT, ALONE, notes.append)
    assert found is not None and found[0]["params"]["w"][0] == found[1]["step"]
    return found[1]["step"], notes


@pytest.mark.parametrize(
    "spoil, step, said",
    [
        (copied(39, "40"), 39, ["checkpoint 40 is broken: it is the checkpoint of step 39, "]),
        (copied(40, "99"), 40, ["checkpoint 99 is broken: it is the checkpoint of step 40, "]),
        (swapped("39", "40"), 38, ["40 is broken: it is ", "of step 39", "of step 40"]),
        (swapped("39/digests.json", "40/digests.json"), 38, ["of step 39", "of step 40"]),
        (swapped("39/state", "40/state"), 38, ["40/state/", "39/state/"]),
        (lambda folder: (folder / "40" / at_rest.FILE).unlink(), 39, ["digests.json is missing"]),
        (of_another_run, 40, ["41 is broken: it is of another run ('bbbbbbbbbbbb"]),
        (without_digests, 40, ["checkpoint 41 is broken: ", "digests.json is missing"]),
        (a_file, 40, ["checkpoint 41 is broken: ", "Not a directory"]),
        (a_loop, 40, ["checkpoint 41 is broken: ", "symbolic links"]),
        (a_pipe, 39, ["40/extra/metadata: it is no file"]),
        (a_folder_for_a_file, 39, ["40/extra/metadata: it is no file"]),
        (a_linked_folder, 39, ["40/state/more: it was not there"]),
        (resealed(files=3), 39, ["has other values than sizes and digests"]),
        (resealed(files={"../39/state/x": [1, "0"]}), 39, ["has other values than sizes"]),
        (resealed(files={"/dev/zero": [0, "0"]}), 39, ["has other values than sizes"]),
        (resealed(files={"state/x": ["1", "0"]}), 39, ["has other values than sizes"]),
        (copied(40, "040"), 40, []),
        (copied(40, "²"), 40, []),
        (copied(40, "4" * 99), 40, []),
        (copied(40, "40 (copy)"), 40, []),
    ],
)  # fmt: skip
def test_a_start_names_it_and_goes_on_from_the_newest_sound_one(workdir, spoil, step, said):
    folder = workdir / "checkpoints"
    spoil(folder)
    before = sorted(os.path.relpath(p, folder) for p in folder.glob("*/*/*"))
    found, notes = resumed(workdir)
    assert found == step and all("\n" not in line for line in notes)
    for words in said:
        assert any(words in line for line in notes), (words, notes)
    if not said:
        assert notes == []
    aside = {name: step for step, name in folders.asides_in(folder)}
    now = (os.path.relpath(path, folder) for path in folder.glob("*/*/*"))
    back = (path.split("/") for path in now)
    assert sorted("/".join((str(aside.get(p[0], p[0])), *p[1:])) for p in back) == before


def test_where_all_are_in_each_other_s_place_nothing_is_moved(workdir):
    folder = workdir / "checkpoints"
    shutil.rmtree(folder / "37")
    shutil.rmtree(folder / "38")
    swapped("39", "40")(folder)
    with pytest.raises(CheckpointBroken, match=r"is sound \(40: .* step 39, .*; 39: .* step 40, "):
        resumed(workdir)
    assert folders.steps_in(folder) == [39, 40] and folders.asides_in(folder) == []


def test_what_was_put_aside_before_is_kept_too(workdir):
    """It may be the only copy of a step."""
    folder = workdir / "checkpoints"
    for from_step in (39, 38, 37):
        copied(from_step, "40")(folder)
        assert resumed(workdir)[0] == 39
    assert [name for _, name in folders.asides_in(folder)] == [
        *("40.broken", "40.broken-2", "40.broken-3")
    ]
    steps = [at_rest.described(folder / name)["step"] for _, name in folders.asides_in(folder)]
    assert steps == [39, 38, 37] and folders.broken_in(folder) == [40]


def test_one_that_may_not_be_read_is_passed_over(workdir, monkeypatch):
    """Root may read all, so that the system's answer is given in its place."""
    plain, path = at_rest._digest_of_file, workdir / "checkpoints" / "40" / "extra" / "metadata"

    def refuse(opened: Path, **more):
        if opened == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(opened, **more)

    monkeypatch.setattr(at_rest, "_digest_of_file", refuse)
    step, (note,) = resumed(workdir)
    assert step == 39 and f"{path}: it cannot be read: Permission denied" in note


def test_a_state_of_another_step_is_passed_over_where_digests_name_none(workdir):
    """Earlier releases wrote no step among the digests."""
    folder = workdir / "checkpoints"
    for step in (39, 40):
        said = at_rest.described(folder / str(step))
        (folder / str(step) / at_rest.FILE).unlink()
        digests = at_rest.describe(folder / str(step), {}, leaves=said["leaves"])
        (folder / str(step) / at_rest.FILE).write_bytes(digests)
    copied(39, "40")(folder)
    notes: list[str] = []
    with Checkpoints(folder, keep=9) as checkpoints:
        found = newest_sound(
            checkpoints, ABSTRACT, ALONE, notes.append, step_of=lambda s: int(s["params"]["w"][0])
        )
    assert found is not None and found[1]["step"] == 39
    assert notes[0].startswith("checkpoint 40 is broken: its state is of step 39; ")


def test_only_own_older_ones_are_deleted(workdir):
    """Neither what somebody put there, nor the newest because of a step that is not there yet."""
    folder = workdir / "checkpoints"
    copied(39, "99")(folder)
    copied(40, "12")(folder)
    (folder / "13").write_text("what somebody keeps here")
    with Checkpoints(folder, keep=2) as checkpoints:
        checkpoints._newest = 40
        checkpoints.save(41, state_of(41), {"step": 41})
    assert folders.steps_in(folder) == [12, 13, 40, 41, 99]


def test_a_fork_has_checkpoints_of_others_up_to_where_it_begins(workdir, template):
    origin = Origin(workdir=str(workdir), run_id="a" * 32, step=40)
    fork = run_in(workdir.parent / "fork", "c" * 32, fork=origin)
    for step, name in ((40, "run"), (41, "other")):
        source = workdir.parent / name / "checkpoints" / str(step)
        shutil.copytree(source, fork / "checkpoints" / str(step))
    assert damage(fork / "checkpoints", 40) == ""
    assert damage(fork / "checkpoints", 41).startswith("it is of another run ('bbbb")


def test_all_other_readers_refuse_it_too(workdir, capsys):
    folder = workdir / "checkpoints"
    copied(39, "40")(folder)
    with pytest.raises(CheckpointBroken, match=r"40 in .* it is the checkpoint of step 39, "):
        read_params(folder, 40, ABSTRACT["params"])
    with pytest.raises(CheckpointBroken, match="is broken: it is the checkpoint of step 39, "):
        origin_of(f"{workdir}@40")
    assert verify([f"--workdir={workdir}"]) == 1
    shown = capsys.readouterr().out
    assert "BROKEN  checkpoints/40/digests.json: it is the checkpoint of step 39, in" in shown


def test_the_best_one_deletes_none_but_older_best_ones(workdir):
    with Checkpoints(workdir / "checkpoints", keep=9) as checkpoints:
        keeps = best.BestCheckpoint(workdir, checkpoints)
        keeps.offer(38, 0.3)
        checkpoints.wait()
        (workdir / best.FOLDER / "notes").mkdir()
        keeps.offer(39, 0.5)
    assert {p.name for p in (workdir / best.FOLDER).iterdir()} == {"39", "notes", best.FILE}


@pytest.mark.parametrize("values", [{"step": "x", "accuracy": 1}, {"step": 3}, {"accuracy": None}])
def test_a_best_one_that_names_no_step_is_damaged(workdir, values):
    (workdir / best.FOLDER).mkdir()
    at_rest.write_sealed(workdir / best.FOLDER / best.FILE, values)
    with pytest.raises(Damaged, match=r"names no step and accuracy; delete .*best"):
        best.best_step(workdir)


def test_older_versions_are_those_that_open_batches_need(workdir):
    """A start that found others would end with a KeyError at its first save."""
    run = replace(RUN, algorithm=replace(RUN.algorithm, lag=1))
    with (
        Checkpoints(workdir / "checkpoints", keep=9) as checkpoints,
        pytest.raises(CheckpointBroken, match=r"has the older versions 38, .* sampled from 39; "),
    ):
        restored_versions(checkpoints, 40, {"versions": {"38": "0"}}, {}, run)
