"""Configuration files under ml_collections' flags, as `main` uses them."""

from collections.abc import Callable

import pytest
from absl import flags
from ml_collections import config_flags

from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig

Parse = Callable[..., RunConfig]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Parse:
    """Return a function from a command line to the record."""
    monkeypatch.chdir(request.config.rootpath)

    def parsed(*overrides: str) -> RunConfig:
        arguments = ["main", "--config=configs/base.py", *overrides]
        values = flags.FlagValues()
        config_flags.DEFINE_config_file("config", None, "", flag_values=values, sys_argv=arguments)
        values(arguments)
        return run_config(values.config)

    return parsed


def test_overrides_reach_the_record(parse: Parse) -> None:
    config = parse(
        "--config.learner.prompts_per_step=48",
        "--config.learner.mesh=(2, 2, 2)",
        "--config.fleet.chaos.enabled=True",
        "--config.manager.lease_seconds=1.5",
    )
    assert config.learner.prompts_per_step == 48
    assert config.learner.mesh == (2, 2, 2)
    assert config.fleet.chaos.enabled
    assert config.manager.lease_seconds == 1.5


def test_a_misspelt_key_suggests_the_right_one(parse: Parse) -> None:
    with pytest.raises(AttributeError, match=r"Did you mean.*prompts_per_step"):
        parse("--config.learner.prompts_per_stp=48")


def test_a_wrong_type_is_an_error_of_the_flag(parse: Parse) -> None:
    with pytest.raises(flags.IllegalFlagValueError, match="prompts_per_step"):
        parse("--config.learner.prompts_per_step=many")
