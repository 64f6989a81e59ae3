"""Names of earlier releases are answered with those of today, whichever way they come in."""

import re
from pathlib import Path

import pytest

from configs import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings import config_loading
from rlboost_jax.settings.command_line import check_overrides, field_names
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.explain import explain
from rlboost_jax.settings.other_names import TABLE, elsewhere, table
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.simulator.sim_config import SimConfig

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
    values = config_loading.to_dict(run_config(base.get_config()))
    values[section][field] = value
    with pytest.raises(ConfigError) as of_a_run:
        config_loading.run_config_from_dict(values)
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
    record = config_loading.to_dict(run_config(config))
    section, _, field = now.partition(".")
    found = record[section][field]
    assert (tuple(found) if isinstance(today, tuple) else found) == today


def test_the_simulator_s_too() -> None:
    with pytest.raises(ConfigError, match=r'write policy\.sizing = "paper" for True'):
        check_overrides(["--config.policy.adaptive_cap=True"], SimConfig)


def test_names_of_other_libraries() -> None:
    """Each leads to a setting that exists, or an option, and none is a setting's own name."""
    fields = set(field_names(RunConfig))
    for row in TABLE:
        assert row.here in fields or row.here.startswith("--")
        for name in (*row.plain, *row.trl, *row.verl, *row.openrlhf):
            assert elsewhere(name) is not None and (name not in fields or name == row.here)
    for name, here in {
        "learner.lr": "learner.learning_rate",
        "batch_size": "learner.prompts_per_step",
        "num_generations": "algorithm.group_size",
        "sampling.max_tokens": "sampling.max_response_tokens",
        "max_new_tokens": "sampling.max_response_tokens",
        "beta": "algorithm.kl_coefficient",
        "kl_coef": "algorithm.kl_coefficient",
        "actor_rollout_ref.rollout.n": "algorithm.group_size",
        "actor_rollout_ref.actor.optim.lr": "learner.learning_rate",
        "lora_rank": "model.lora.rank",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(f"; did you mean {here}?")):
            check_overrides([f"--config.{name}=1"])
    with pytest.raises(ConfigError, match=r"did you mean config\.algorithm\.group_size\?"):
        check_overrides(["--config.learner.group_size=8"])


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/from-trl-or-verl.md"
    assert "\n".join(table()) + "\n" in page.read_text(encoding="utf-8")


def test_no_setting_of_today_is_among_them() -> None:
    values = config_loading.to_dict(run_config(base.get_config()))
    for name in BEFORE:
        section, _, field = name.partition(".")
        assert field not in values[section]
