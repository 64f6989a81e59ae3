"""Mistakes about environments are lines that say what to change."""

import pytest

from configs import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.for_servers import for_servers, sent_to_servers
from rlboost_jax.settings.run_config import RunConfig

SOUND = {
    "task.name": "environment",
    "environment.name": "mine:Game",
    "environment.options": {"size": 3, "words": ["a"]},
    "environment.max_given_tokens": 64,
}


def run_of(**changes: object) -> RunConfig:
    values = base.get_config().to_dict()
    for name, value in {**SOUND, **changes}.items():
        section, field = name.split(".")
        values[section][field] = value
    return run_config_from_dict(values)


def test_a_sound_one_has_room_for_what_is_said() -> None:
    run = run_of()
    assert run.environment.options == {"size": 3, "words": ["a"]}
    engine, sampling = run.engine, run.sampling
    assert run.slot_tokens == engine.max_prompt_tokens + sampling.max_response_tokens + 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment.name": ""}, "environment.name is '', and task.name is 'environment'"),
        ({"task.name": "clock"}, "and task 'clock' has no episodes; set task.name to"),
        ({"environment.name": "mine.Game"}, "'mine.Game' does not exist"),
        ({"environment.max_given_tokens": 0}, "environment.max_given_tokens is 0"),
        ({"environment.turn_tokens": 10**6}, "environment.turn_tokens is 1000000, more than"),
        ({"environment.max_turns": 10**6}, "environment.max_turns is 1000000"),
        ({"environment.on_failure": "score"}, "environment.on_failure 'score' does not exist"),
        ({"environment.attempts": 0}, "environment.attempts is 0; choose 1 or more"),
        (
            {"task.name": "clock", "environment.name": "", "environment.options": {"a": 1}},
            "environment.options is {'a': 1}, of no environment",
        ),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_of(**changes)
    assert said in str(raised.value)


def test_servers_hear_of_the_room_and_nothing_else() -> None:
    run = run_of()
    assert for_servers(run).slot_tokens == run.slot_tokens
    assert sent_to_servers(run)["environment"] == {"max_given_tokens": 64}
    values = base.get_config()
    assert "environment" not in sent_to_servers(run_config_from_dict(values.to_dict()))
