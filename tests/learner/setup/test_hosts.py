"""A run that goes on on another kind of host says so, and keeps where it was."""

import json
from types import SimpleNamespace

import pytest

from configs import tiny
from rlboost_jax.learner.setup.hosts import FILE, note_host, note_processes
from rlboost_jax.platform.at_rest import read_sealed
from rlboost_jax.settings.config_loading import run_config
from tests.learner.doubles import train

HERE, THERE = "jax0.10.2-cpu-0123456789abcdef", "jax0.12.0-cpu-fedcba9876543210"


def kept(workdir):
    found = read_sealed(workdir / FILE, "")["engines"]
    return [(each["step"], each["fingerprint"]) for each in found]


def test_another_host_is_said_once_and_kept(tmp_path):
    assert note_host(tmp_path, 0, HERE) == note_host(tmp_path, 3, HERE) == ""
    assert kept(tmp_path) == [(0, HERE)]
    line = note_host(tmp_path, 5, THERE)
    assert f"from step 5 on the trainer's engine is {THERE}; before it was {HERE}" in line
    assert note_host(tmp_path, 7, THERE) == ""
    assert kept(tmp_path) == [(0, HERE), (5, THERE)]


def test_a_host_that_began_a_step_counts(tmp_path):
    """Tokens of it may be used by whoever goes on."""
    note_host(tmp_path, 0, HERE)
    assert note_host(tmp_path, 4, THERE) and note_host(tmp_path, 4, HERE)
    assert kept(tmp_path) == [(0, HERE), (4, THERE), (4, HERE)]


def test_steps_that_are_done_again_are_forgotten(tmp_path):
    """The checkpoint of step 4 was broken, say: the run goes on with step 2."""
    note_host(tmp_path, 0, HERE)
    note_host(tmp_path, 4, THERE)
    assert note_host(tmp_path, 2, HERE) == ""
    assert kept(tmp_path) == [(0, HERE)]


def test_a_damaged_record_is_named_and_made_anew(tmp_path):
    note_host(tmp_path, 0, HERE)
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace("jax0", "jax1"))
    assert "fingerprints.json is damaged" in note_host(tmp_path, 1, HERE)
    assert kept(tmp_path) == [(1, HERE)]


def test_another_number_of_processes_is_said_once_and_kept_beside(tmp_path):
    note_host(tmp_path, 0, HERE)  # of a release that kept no processes
    assert note_processes(tmp_path, 2, 1) == note_processes(tmp_path, 3, 1) == ""
    line = note_processes(tmp_path, 5, 2)
    assert "from step 5 on the trainer's processes are 2; before it were 1" in line
    assert note_processes(tmp_path, 6, 2) == note_host(tmp_path, 6, HERE) == ""
    found = read_sealed(tmp_path / FILE, "")
    assert found["trainer"] == [{"step": 2, "processes": 1}, {"step": 5, "processes": 2}]
    assert kept(tmp_path) == [(0, HERE)]
    assert note_processes(tmp_path, 4, 1) == "", "steps that are done again are forgotten"


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_trainer_keeps_it_where_bits_count(tmp_path, deterministic):
    config = tiny.get_config()
    config.deterministic, config.num_steps = deterministic, 1
    config.warmup.max_updates = config.warmup.habit_updates = 0
    engine = SimpleNamespace(memory="", fingerprint=HERE)
    train(run_config(config), tmp_path / "run", engine=lambda run, **_: engine)
    found = json.loads((tmp_path / "run" / FILE).read_text())
    assert ("engines" in found) == deterministic and found["releases"][0]["step"] == 0
    if deterministic:
        assert kept(tmp_path / "run") == [(0, HERE)]
