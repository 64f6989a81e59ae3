"""Which checkpoint a run goes on from when bits of the newest have changed."""

import errno
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rlboost_jax.learner.checkpoints import leaf_digests, orbax_files
from rlboost_jax.learner.checkpoints.fallback import newest_sound
from rlboost_jax.learner.checkpoints.folders import steps_in
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken, CheckpointNotWritten
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.platform import at_rest, durable
from tests.patience import PATIENCE_SECONDS

SHAPES = {"params": {"w": (40, 3)}, "moments": [(40, 3), ()]}
SHAPES_ARE = {"is_leaf": lambda node: isinstance(node, tuple)}


def state_of(step: int):
    rng = np.random.default_rng(step)
    return jax.tree.map(lambda shape: rng.standard_normal(shape).astype("f4"), SHAPES, **SHAPES_ARE)


ABSTRACT = jax.tree.map(lambda shape: np.zeros(shape, np.float32), SHAPES, **SHAPES_ARE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state_of(step), {"step": step})
    return tmp_path


def flipped(path: Path, seed: int) -> None:
    draw, data = random.Random(seed), bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def resumed(folder: Path):
    """Step that was gone on from, its state, and what was said."""
    notes: list[str] = []
    with Checkpoints(folder, keep=3) as checkpoints:
        found = newest_sound(checkpoints, ABSTRACT, ALONE, notes.append)
        assert found is not None
        step = found[1]["step"]
        assert checkpoints.latest() == step
        checkpoints.save(step + 1, state_of(step + 1), {"step": step + 1})
    return step, found[0], notes


def is_state_of(tree, step: int) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(state_of(step)), strict=True)
    return all(np.asarray(a).tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_takes_the_run_back_one_checkpoint(folder, seed):
    files = sorted(path for path in (folder / "3").rglob("*") if path.is_file())
    path = files[seed % len(files)]
    flipped(path, seed)
    step, state, notes = resumed(folder)
    assert step == 2 and is_state_of(state, 2)
    (note,) = notes
    assert note.startswith("checkpoint 3 is broken: ") and path.name in note
    assert note.endswith("it is kept as 3.broken, and the run goes on from checkpoint 2")
    assert (folder / "3.broken" / path.relative_to(folder / "3")).exists()
    assert is_state_of(resumed(folder)[1], 3), "written again by the run that went back"


def test_two_broken_ones_are_passed_over(folder):
    shutil.rmtree(folder / "3" / "state")
    (folder / "2" / at_rest.FILE).unlink()
    step, state, notes = resumed(folder)
    assert step == 1 and is_state_of(state, 1) and len(notes) == 2
    assert f"{at_rest.FILE} is missing" in notes[1]


def test_without_a_sound_one_nothing_is_moved(folder):
    for step in (1, 2, 3):
        flipped(folder / str(step) / "extra" / "metadata", step)
    with (
        Checkpoints(folder, keep=3) as checkpoints,
        pytest.raises(CheckpointBroken, match=r"no checkpoint in .* is sound \(3: .*; 2: .*; 1: "),
    ):
        newest_sound(checkpoints, ABSTRACT, ALONE, print)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "3"]


def test_another_model_is_no_damage(folder):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wider = {
        **ABSTRACT,
        "params": {"w": jax.ShapeDtypeStruct((40, 4), np.float32, sharding=place)},
    }
    with Checkpoints(folder, keep=3) as checkpoints, pytest.raises(CheckpointBroken):
        newest_sound(checkpoints, wider, ALONE, print)
    assert (folder / "3").exists()


def test_a_sound_one_of_another_model_is_not_passed_over(tmp_path):
    """To go on from the one before would drop what the run was changed for."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, state_of(1), {"step": 1})
        checkpoints.save(2, {**state_of(2), "params": {"v": np.zeros((40, 3), "f4")}}, {"step": 2})
    with pytest.raises(CheckpointBroken, match=r"checkpoint 2 in .* cannot be read"):
        resumed(tmp_path)
    assert steps_in(tmp_path) == [1, 2]


def test_a_file_that_it_was_not_written_with_makes_one_broken(folder):
    """Orbax would take it for a part of an array."""
    (folder / "3" / "state" / "d" / "more").write_bytes(b"1")
    step, state, (note,) = resumed(folder)
    assert step == 2 and is_state_of(state, 2)
    assert "it was not there when the folder was written" in note


def test_copies_that_wait_for_the_disk_are_bounded(tmp_path):
    """Without room for a second one its `save` waits for the first, and hears what became of it."""
    second = threading.Event()

    class Watched(np.ndarray):
        @property
        def nbytes(self):
            second.set()
            return super().nbytes

    def refuse(step):
        assert second.wait(PATIENCE_SECONDS)
        raise OSError(f"nobody listens to {step}")

    state = {"w": np.ones(1000, "f4")}
    for room, waits in ((4000, True), (8000, False)):
        second.clear()
        folder = tmp_path / str(room)
        checkpoints = Checkpoints(folder, keep=3, on_durable=refuse, waiting_bytes=room)
        checkpoints.save(1, state, {})
        with pytest.raises(OSError, match="nobody listens to 1"):
            if waits:
                checkpoints.save(2, {"w": np.ones(1000, "f4").view(Watched)}, {})
            else:
                checkpoints.save(2, state, {})  # beside it, while nobody has heard of the first
                second.set()
                checkpoints.wait()
        checkpoints.close()


def test_a_host_that_can_read_nothing_now_breaks_no_checkpoint(folder, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(orbax_files, "read", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        resumed(folder)
    assert steps_in(folder) == [1, 2, 3]


def test_what_was_otherwise_in_memory_is_named_by_its_leaf(folder):
    """Files that are as they were written; one leaf in them is not what was saved."""
    place = folder / "3"
    said = at_rest.described(place)
    said["leaves"]["state"]["moments.0"][0][1] = "0" * 64
    (place / at_rest.FILE).unlink()
    (place / at_rest.FILE).write_bytes(at_rest.describe(place, {}, leaves=said["leaves"]))
    with (
        Checkpoints(folder, keep=3) as checkpoints,
        pytest.raises(CheckpointBroken, match=r"state\.moments.0 is not what was in memory"),
    ):
        checkpoints.restore(3, ABSTRACT)


def test_a_leaf_s_digest_is_of_its_dtype_shape_and_bytes():
    tree = state_of(0)
    digests = leaf_digests.parts_of(tree)()
    assert leaf_digests.differing(tree, digests) == []
    tree["params"]["w"] = tree["params"]["w"].reshape(3, 40)
    assert leaf_digests.differing({"params": tree["params"]}, digests) == ["params.w"]
    changed = state_of(0)
    changed["moments"][1] = np.nextafter(changed["moments"][1], np.float32(9))
    assert leaf_digests.differing(changed, digests) == ["moments.1"]


class Forgetful(Checkpoints):
    """A disk that takes a checkpoint and gives another back."""

    both: threading.Event  # the one that comes after it is on its way

    def _finish(self, step: int) -> None:
        if step == 3:
            assert self.both.wait(PATIENCE_SECONDS)
            flipped(self.place(step).with_name(f"{step}.part") / "state" / "_METADATA", 0)
        super()._finish(step)


def test_what_lies_before_a_checkpoint_lasts_before_it_counts(tmp_path, monkeypatch):
    """Its own files, then the rows of the steps before it, then its name."""
    order: list[tuple[str, Any]] = []

    def noted(name: str) -> None:
        call = getattr(durable, name)

        def note(path: Path, *more: Any) -> None:
            call(path, *more)
            order.append((name, path.name))

        monkeypatch.setattr(durable, name, note)

    noted("sync_tree")
    noted("replace")
    with Checkpoints(
        tmp_path,
        keep=2,
        before=lambda: order.append(("rows", tmp_path.name)),
        on_durable=lambda step: order.append(("durable", step)),
    ) as checkpoints:
        checkpoints.save(1, state_of(1), {})
    part = f"1{durable.PART}"
    assert order[-4:] == [
        ("sync_tree", part),
        ("rows", tmp_path.name),
        ("replace", part),
        ("durable", 1),
    ]


def test_where_rows_cannot_be_kept_no_checkpoint_counts(tmp_path):
    said: list[int] = []

    def refuse() -> None:
        raise OSError("no room for rows")

    checkpoints = Checkpoints(tmp_path, keep=2, before=refuse, on_durable=said.append)
    checkpoints.save(1, state_of(1), {})
    with pytest.raises(OSError, match="no room for rows"):
        checkpoints.wait()
    checkpoints.save(2, state_of(2), {})  # what comes after it is left alone
    checkpoints.close()
    assert checkpoints.complete() == [] and not said


def test_none_goes_before_a_newer_one_was_read_back(tmp_path):
    durable: list[int] = []
    checkpoints = Forgetful(tmp_path, keep=1, on_durable=durable.append)
    checkpoints.both = threading.Event()
    for step in (1, 2):
        checkpoints.save(step, state_of(step), {})
    checkpoints.wait()
    assert checkpoints.complete() == [2] and durable == [1, 2]
    checkpoints.save(3, state_of(3), {})
    checkpoints.save(4, state_of(4), {})  # on its way before anybody hears of it
    checkpoints.both.set()
    with pytest.raises(
        CheckpointNotWritten, match=r"3 was written and does not read back: .*_META"
    ):
        checkpoints.wait()
    checkpoints.close()
    assert checkpoints.complete() == [2, 3] and durable == [1, 2]
