import logging
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from rlboost_jax.learner.checkpoints import orbax_files
from rlboost_jax.learner.checkpoints.fallback import newest_sound
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken, CheckpointNotFound
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.learner.state import abstract_state, init_state
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.weights.snapshots import SnapshotStore

EXTRA = {"prompt": 48, "window": {"seconds": 1.5, "memory": [[2, 0.75]]}, "seed": 0, "none": None}


@pytest.fixture
def training(config, learner_step, groups):
    """The state after two updates, and a function that makes one more."""
    step = learner_step()
    batches = pack(
        [t for group in groups for t in group.trajectories],
        rows=2,
        row_tokens=32,
        loss_aggregation="token_mean",
    )

    def update(state):
        gradients, _ = step.accumulate(state.params, None, batches)
        return step.apply(state, gradients, np.float32(100))[0]

    state = init_state(init_params(config.model, 0), step.optimizer, step.shardings)
    return update(update(state)), update


@pytest.fixture
def abstract(config, learner_step):
    return abstract_state(config.model, learner_step().optimizer, make_mesh((1, 1, 1)))


def same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_training_goes_on_bit_for_bit(tmp_path, training, abstract):
    state, update = training
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(2, state, EXTRA)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() == 2
        restored, extra = checkpoints.restore(2, abstract)
    assert extra == EXTRA
    assert same_bits(restored, state)
    assert jax.tree.map(lambda leaf: leaf.sharding, restored) == jax.tree.map(
        lambda leaf: leaf.sharding, abstract
    )
    after, resumed = update(state), update(restored)
    assert same_bits(after, resumed)
    assert params_digest(after.params) == params_digest(resumed.params)


def test_a_saved_state_may_be_donated_at_once(tmp_path, training, abstract):
    state, update = training
    expected = jax.tree.map(lambda leaf: np.array(leaf), state)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(2, state, EXTRA)
        update(state)
        checkpoints.wait()
        assert same_bits(checkpoints.restore(2, abstract)[0], expected)


def test_durable_is_said_once_per_step_when_the_files_are_there(tmp_path, training):
    state, _ = training
    heard = []

    def on_durable(step):
        assert threading.current_thread() is not threading.main_thread()
        heard.append((step, (tmp_path / str(step) / "state").is_dir()))

    with Checkpoints(tmp_path, keep=2, on_durable=on_durable) as checkpoints:
        for step in (1, 2, 5):
            checkpoints.save(step, state, EXTRA)
        checkpoints.wait()
        assert heard == [(1, True), (2, True), (5, True)]
        assert checkpoints.latest() == 5
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["2", "5"]


def test_what_a_listener_raises_is_raised_by_wait(tmp_path, training):
    state, _ = training

    def refuse(step):
        raise OSError(f"nobody listens to {step}")

    checkpoints = Checkpoints(tmp_path, keep=2, on_durable=refuse)
    checkpoints.save(1, state, EXTRA)
    with pytest.raises(OSError, match="nobody listens to 1"):
        checkpoints.wait()
    checkpoints.close()


def test_a_torn_step_is_ignored(tmp_path, training, abstract):
    """What a process that was killed leaves: the folder before it is moved into place."""
    state, _ = training
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, state, EXTRA)
    torn = tmp_path / "2.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "1", torn)
    for marker in torn.rglob("commit_success*"):
        marker.unlink()
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        assert checkpoints.latest() == 1
        with pytest.raises(CheckpointNotFound, match=r"checkpoint 2 is not in .*ones: \[1\]"):
            checkpoints.restore(2, abstract)
        checkpoints.save(2, state, EXTRA)
        checkpoints.wait()
        assert checkpoints.latest() == 2


def test_damaged_files_and_those_of_another_model_are_one_line(tmp_path, training, abstract):
    state, _ = training
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, state, EXTRA)
        checkpoints.save(2, state, EXTRA)
    for file in (tmp_path / "2").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:100])
    wider = jax.tree.map(lambda leaf: leaf.update(shape=(*leaf.shape[:-1], 99)), abstract.params)
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step, wanted in ((2, abstract), (1, replace(abstract, params=wider))):
            with pytest.raises(CheckpointBroken) as caught:
                checkpoints.restore(step, wanted)
            line = str(caught.value)
            assert line.startswith(f"checkpoint {step} in {tmp_path} cannot be read; complete ones")
            assert "[1, 2]" in line and "\n" not in line
        assert same_bits(checkpoints.restore(1, abstract)[0], state)


def test_those_of_a_release_without_digests_are_read(tmp_path, training, abstract):
    """As Orbax's own manager writes them; one that is damaged is passed over, too."""
    state, _ = training
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            arrays, extra = ocp.args.StandardSave(state), ocp.args.JsonSave(EXTRA)
            manager.save(step, args=ocp.args.Composite(state=arrays, extra=extra))
    for file in (tmp_path / "2").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:100])
    notes = []
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        restored, extra = newest_sound(checkpoints, abstract, ALONE, notes.append)
    assert extra == EXTRA and same_bits(restored, state)
    broken, unchecked = notes
    assert broken.startswith("checkpoint 2 is broken") and "from checkpoint 1" in broken
    assert unchecked == "checkpoint 1 was written without digests: its files cannot be checked"


def test_orbax_reads_what_was_written(tmp_path, training, abstract):
    state, _ = training
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state, EXTRA)
    with ocp.StandardCheckpointer() as reader:
        assert same_bits(reader.restore(tmp_path / "1" / "state", abstract), state)


def test_multiples_are_never_deleted(tmp_path):
    with Checkpoints(tmp_path, keep=2, keep_every=3) as checkpoints:
        for step in range(9):
            checkpoints.save(step, {"step": np.arange(2)}, {})
        checkpoints.wait()
        assert checkpoints.complete() == [3, 6, 7, 8]


def test_what_is_held_is_deleted_once_it_is_held_no_more(tmp_path):
    held = {1}
    with Checkpoints(tmp_path, keep=1, held=lambda: held) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"a": np.zeros(3)}, {})
        checkpoints.wait()
        assert checkpoints.complete() == [1, 3]
        held.clear()
        checkpoints.save(4, {"a": np.zeros(3)}, {})
        checkpoints.wait()
        assert checkpoints.complete() == [4]


def test_an_empty_folder_has_no_latest(tmp_path):
    with Checkpoints(tmp_path / "new", keep=2) as checkpoints:
        assert checkpoints.latest() is None


def test_steps_only_grow(tmp_path, training):
    state, _ = training
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(3, state, EXTRA)
        with pytest.raises(ValueError, match="checkpoint 3 would come after 3"):
            checkpoints.save(3, state, EXTRA)


def test_snapshots_are_written_while_checkpoints_are_saved(tmp_path):
    store = SnapshotStore(tmp_path / "snapshots", dtype="float32", keep=2)
    tree = {"w": np.ones(1000, np.float32), "b": {"c": np.zeros(7, np.float32)}}

    def write() -> None:
        for version in range(25):
            store.write(version, tree, "digest")
            store.prune()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for step in range(25):
            checkpoints.save(step, tree, {})
    writer.join()
    assert store.versions == (23, 24)


@pytest.mark.parametrize("lacks", [True, False])
def test_what_the_host_lacks_is_no_traceback_of_orbax(tmp_path: Path, lacks: bool) -> None:
    """Its threads log what they raise; the same is raised where the tree is waited for."""
    (tmp_path / "tree").mkdir()
    orbax_files.begin(tmp_path / "tree", {"x": np.zeros(1)})()
    heard: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("absl"), logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        raise OSError("RESOURCE_EXHAUSTED: No space left on device" if lacks else "torn")
    except OSError:
        logger.exception("raised an exception")
    finally:
        logger.removeHandler(handler)
    assert len(heard) == (not lacks)


LATE = """
import asyncio, sys, numpy as np, tensorstore
from pathlib import Path
from rlboost_jax.learner.checkpoints import orbax_files

async def wait(future):
    await future

for folder in sys.argv[1:]:
    orbax_files.begin(Path(folder), {"a": np.ones(2)})()
promise, future = tensorstore.Promise.new()
loop = asyncio.new_event_loop()
task = loop.create_task(wait(future))
loop.run_until_complete(asyncio.sleep(0))
loop.close()
promise.set_result(1)

Broken = type("Broken", (), {"__del__": lambda self: {}["another error"]})
Broken()
"""


def test_a_write_that_ends_after_another_has_failed_prints_nothing(tmp_path):
    """Orbax closes its loop at the first error; what TensorStore still writes asks for the loop."""

    def printed(*folders):
        command = [sys.executable, "-c", LATE, *map(str, folders)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "Event loop is closed" in printed()  # or there is nothing to be silent about
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    found = printed(tmp_path / "one", tmp_path / "two")
    assert "Event loop is closed" not in found
    assert found.count("another error") == 1  # which is said as ever
