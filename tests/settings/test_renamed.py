"""Names of earlier releases are answered with those of today, whichever way they come in."""

import re

import pytest

from configs import base
from rlboost_jax.settings import load
from rlboost_jax.settings.command_line import check_overrides
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.explain import explain
from rlboost_jax.settings.load import run_config
from rlboost_jax.simulator.records import SimConfig

# As `configs/base.py` of those releases had them, with what the same run says today.
BEFORE = {
    "algorithm.normalize_by_std": (False, ("algorithm.advantage", "group_mean")),
    "fleet.adaptive_cap": (True, ("fleet.sizing", "paper")),
    "learner.guard_logprob_gap": (0.5, ("learner.tolerated_gap", 0.5)),
    "observe.tensorboard": (True, ("observe.trackers", ("tensorboard",))),
}


@pytest.mark.parametrize("name", BEFORE)
def test_it_is_one_line_that_names_the_successor(name: str) -> None:
    value, (now, today) = BEFORE[name]
    section, _, field = name.partition(".")
    values = load.to_dict(run_config(base.get_config()))
    values[section][field] = value
    with pytest.raises(ConfigError) as of_a_run:
        load.run_config_from_dict(values)
    with pytest.raises(ConfigError) as of_a_flag:
        check_overrides([f"--config.{name}={value}"])
    with pytest.raises(ConfigError) as of_a_question:
        explain(name)
    for caught in (of_a_run, of_a_flag, of_a_question):
        said = str(caught.value)
        assert "\n" not in said and f"it was renamed; write {now}" in said
        assert isinstance(today, float) or re.search(re.escape(str(today).replace("'", '"')), said)


@pytest.mark.parametrize("name", BEFORE)
def test_what_it_says_to_write_is_accepted(name: str) -> None:
    _, (now, today) = BEFORE[name]
    config = base.get_config()
    config[now.partition(".")[0]][now.partition(".")[2]] = today
    record = load.to_dict(run_config(config))
    section, _, field = now.partition(".")
    found = record[section][field]
    assert (tuple(found) if isinstance(today, tuple) else found) == today


def test_the_simulator_s_too() -> None:
    with pytest.raises(ConfigError, match=r'write policy\.sizing = "paper" for True'):
        check_overrides(["--config.policy.adaptive_cap=True"], SimConfig)


def test_no_setting_of_today_is_among_them() -> None:
    values = load.to_dict(run_config(base.get_config()))
    for name in BEFORE:
        section, _, field = name.partition(".")
        assert field not in values[section]
