"""A learner of two processes: what each holds and writes, and what both learn together."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.kept_versions import restored_versions
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import params_digest
from rlboost_jax.settings.memory_estimates import num_parameters
from tests import unoptimized
from tests.endpoints import free_port
from tests.learner.on_mesh import ALONE, Trainer, gap, random_batches, small_run
from tests.learner.processes.two_processes import taught, trees_of
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]


def saved_alone():
    """A state of one process, each of whose leaves has numbers of its own."""
    leaves, tree = jax.tree.flatten(Trainer(ALONE).state)
    floats = (leaf.dtype == np.float32 for leaf in leaves)
    changed = [
        leaf + index if is_float else leaf
        for index, (leaf, is_float) in enumerate(zip(leaves, floats, strict=True))
    ]
    return jax.tree.unflatten(tree, changed)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Folder, and (exit code, output) of each of the two."""
    folder = tmp_path_factory.mktemp("two")
    with Checkpoints(folder / "alone", keep=1) as kept:
        kept.save(1, saved_alone(), {})
    port = free_port()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        **dict.fromkeys(("https_proxy", "grpc_proxy"), "http://127.0.0.1:9"),  # lead nowhere
        **unoptimized.environment(flags),  # as in this process
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    command = [sys.executable, "-m", "tests.learner.processes.two_processes"]
    processes = [
        subprocess.Popen(
            [*command, str(index), str(port), str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode == 9, outputs[0][1][-3000:]
    return folder, [(p.returncode, out) for p, (out, _) in zip(processes, outputs, strict=True)]


@pytest.fixture(scope="module")
def measured(ended):
    _, ((_, printed), _) = ended
    return json.loads(printed.splitlines()[-1])


def test_two_processes_learn_what_one_device_learns(measured):
    assert measured["gap"] < 1e-5


def test_all_run_the_kernels_that_process_0_chose(ended):
    folder, _ = ended
    assert [(folder / f"chosen-{index}").read_text() for index in range(2)] == [
        "chunked blocks"
    ] * 2


def test_each_device_holds_a_quarter_of_parameters_and_moments(measured):
    count = num_parameters(small_run().model)
    norms = 3 * 16 + 2 * 8
    each = 4 * ((count - norms) // 4 + norms)
    assert measured["bytes of params"] == [[each] * 2, 4 * count]
    (on_one, on_other), whole = measured["bytes of moments"]
    assert on_one == on_other == 2 * each + (whole - 2 * 4 * count)


def test_process_0_copies_its_share_and_nothing_else(measured):
    """Neither for what it writes of a version nor for the digest of all of it, two times here."""
    whole = 4 * num_parameters(small_run().model)
    assert measured["bytes that process 0 has copied"] == measured["bytes of its share"]
    assert abs(measured["bytes of its share"] - whole / 2) < 0.01 * whole


def test_a_version_of_two_processes_is_whole(measured):
    assert measured["digest of what was written"] == measured["digest"]
    assert measured["digest on a base"] != measured["digest"]
    assert measured["an engine's parameters are equal"]
    table = [path for path in measured["files"] if path.startswith("embedding.table/")]
    assert table == [f"embedding.table/{name}" for name in (".zarray", "0.0", "0.1", "1.0", "1.1")]


def test_deltas_of_two_processes_are_of_the_files_of_both(measured):
    files = [path for path in measured["files"] if not path.endswith("/.zarray")]
    assert measured["deltas"] == files


def test_a_process_that_cannot_write_its_share_is_named(measured):
    assert measured["fault"].startswith("process 1: leaf ")


def test_all_check_what_process_0_has_them_check(measured):
    """Log-probabilities are of programs over both devices: alone, process 0 would wait for ever.
    Where one is wrong all look for it, response by response."""
    assert measured["doubts"] == [[], [[1, 1]]] * 2


def test_a_teacher_of_two_processes_says_what_it_says_on_one_device(measured, tmp_path):
    alone = taught(tmp_path / "teacher", make_mesh(ALONE))
    np.testing.assert_allclose(measured["what a teacher says"], alone, atol=1e-5)


def test_each_keeps_its_half_of_an_older_version_and_all_check_with_it(measured):
    whole = 4 * num_parameters(small_run().model)
    assert abs(measured["bytes of a kept version"] - whole / 2) < 0.01 * whole
    assert measured["doubts about an older version"] == [[], [[1, 1]]] * 2, (
        "those that are measured, too"
    )
    assert measured["files of its share"] > 0


def test_a_checkpoint_has_older_versions_whole_on_whatever_mesh(ended, measured):
    folder, _ = ended
    trainer, run = Trainer(ALONE), small_run()
    run = replace(
        run,
        algorithm=replace(run.algorithm, lag=1),
        weights=replace(run.weights, rollout_dtype="float32"),
    )
    with Checkpoints(folder / "with_versions", keep=1) as kept:
        state, extra = kept.restore(3, trainer.abstract())
        versions = restored_versions(kept, 3, extra, state.params, run)
    assert extra == {"versions": {"2": "two"}} and versions.digest(2) == "two"
    assert params_digest(versions.params(2)) == measured["digest"]


def test_what_they_saved_together_goes_on_on_one_device(ended, measured):
    folder, _ = ended
    trainer = Trainer(ALONE)
    with Checkpoints(folder / "checkpoints", keep=1) as kept:
        assert kept.latest() == 2
        trainer.state, extra = kept.restore(2, trainer.abstract())
    assert extra == {"window": None}
    assert params_digest(trainer.state.params) == measured["digest"], "nobody held it whole"
    with_base = params_digest(trainer.state.params, base="base")
    assert with_base == measured["digest on a base"]
    twice = Trainer(ALONE)
    for _ in range(2):
        twice.update(random_batches())
    assert gap(jax.device_get(trainer.state), jax.device_get(twice.state)) < 1e-5


def test_what_one_process_saved_goes_on_in_two(measured):
    """Parameters and both moments, with the bits that were saved."""
    expected = [params_digest(jax.device_get(tree)) for tree in trees_of(saved_alone())]
    assert len(set(expected)) == 3
    assert measured["digests of what one process saved"] == expected


def test_both_go_back_where_one_reads_what_is_broken(measured):
    step, complete, (note,) = measured["went back"]
    assert (step, complete) == (1, [1])
    assert note.startswith("checkpoint 2 is broken: process 1 of 2: ")
    assert note.endswith("the run goes on from checkpoint 1")


def test_a_follower_ends_when_process_0_is_gone_without_a_word(ended):
    _, (_, (code, printed)) = ended
    assert (code, printed.splitlines()[-1]) == (1, "LeaderLost process 0 is gone without a word")
