"""Switches add up in no deterministic run, and in the others as the environment has it."""

import os
from pathlib import Path
from typing import Any

import pytest

from configs import tiny
from rlboost_jax.learner.processes.follower import follow_training
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.training import run_training
from rlboost_jax.models.collectives import IN_SWITCHES
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig


class Enough(Exception):
    """The first device is about to be touched."""


def enough(*_: Any) -> Any:
    raise Enough


def leads(run: RunConfig, path: Path) -> None:
    run_training(run, path, makers=Makers(kernels=enough))


def follows(run: RunConfig, path: Path) -> None:
    follow_training(run, path, ALONE, make_programs=enough)


@pytest.mark.parametrize("process", [leads, follows])
@pytest.mark.parametrize(("deterministic", "found"), [(True, "0"), (False, "1")])
def test_the_environment_has_its_say_where_bits_do_not_count(
    process: Any, deterministic: bool, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in IN_SWITCHES:
        monkeypatch.setenv(name, "1")
    config = tiny.get_config()
    config.deterministic = deterministic
    with pytest.raises(Enough):
        process(run_config(config), tmp_path / "run")
    assert {name: os.environ[name] for name in IN_SWITCHES} == dict.fromkeys(IN_SWITCHES, found)
