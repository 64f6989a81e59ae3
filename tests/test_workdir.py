"""Whose folder it is, and that a start which was killed is no obstacle to the next."""

from dataclasses import replace

import pytest

from configs import tiny
from rlboost_jax.settings.load import run_config
from rlboost_jax.workdir import Workdir, WorkdirUnusable, is_held

RUN = run_config(tiny.get_config())


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
    other = replace(moved, model=replace(RUN.model, family="llama"))
    with pytest.raises(WorkdirUnusable, match=r"model\.family"):
        Workdir(tmp_path, other).__enter__()


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
