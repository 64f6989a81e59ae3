"""Who plays an environment sees what a policy would read, and how the episode ends."""

import asyncio
from typing import Any

import pytest

from configs import base
from rlboost_jax.environments.player import Player, example_of
from rlboost_jax.environments.protocol import Step, Turn
from rlboost_jax.environments.tools import toolbox
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.run_config import RunConfig

HERE = "tests.environments.test_player"


class Shop:
    """Calls are answered; "again" begins another sequence; other turns are worth 2 and the last."""

    def reset(self, example: Any, seed: int) -> str:
        self.tools = toolbox(self.price)
        return f"Buy {example['index']}."

    def price(self, of: str) -> int:
        """What something costs."""
        return len(of)

    def step(self, turn: Turn) -> Step:
        if turn.results:
            return Step(observation=[{"role": "tool", "content": turn.results[0].content}])
        if turn.text == "again":
            return Step(observation="Sell.", anew=True)
        return Step(reward=2.0, done=True, metrics={"solved": 1.0})


def run_of(**environment: Any) -> RunConfig:
    config = base.get_config()
    config.task.name = "environment"
    config.warmup.max_updates = 0
    config.environment.name = f"{HERE}:Shop"
    config.environment.max_given_tokens = 100
    config.environment.tool_format = "json"
    config.data.tokenizer = "bytes"
    config.model.vocab_size = 264
    for key, value in environment.items():
        config.environment[key] = value
    return run_config_from_dict(config.to_dict())


def shown(*turns: str, **environment: Any) -> list[str]:
    async def play() -> list[str]:
        player = Player(run_of(**environment))
        return [line async for line in player.lines({"index": 3}, 1, turns)]

    return asyncio.run(play())


def test_what_is_read_said_and_called_is_shown() -> None:
    prompt, called, given, worth, end = shown(
        '{"name": "price", "arguments": {"of": "a hat"}}', "I buy it."
    )
    assert prompt.startswith("prompt, ") and "Buy 3." in prompt
    assert called == 'price({"of": "a hat"}): 5'
    assert given.startswith("given, ") and "<tool>5" in given
    assert worth == "reward 2 {'solved': 1.0}"
    assert end == "done after 2 turns; reward 2"


def test_a_sequence_that_begins_anew_has_a_prompt_of_its_own() -> None:
    _, anew, *_, end = shown("again", "I sell it.")
    assert anew.startswith("another sequence, ") and "Sell." in anew and "Buy" not in anew
    assert end == "done after 2 turns; reward 2"


@pytest.mark.parametrize(
    ("turns", "end"),
    [
        ((), "not done after 0 turns; reward so far 0"),
        (("again",), "not done after 1 turns; reward so far 0"),
        (("again",) * 9, "not done after 2 turns; reward so far 0"),
    ],
)
def test_lines_or_turns_that_are_used_up_are_counted(turns: tuple[str, ...], end: str) -> None:
    assert shown(*turns, max_turns=2)[-1] == end


def test_an_example_is_a_number_or_an_object() -> None:
    run = run_of()
    assert example_of(run, "0") == {"index": 1}
    assert example_of(run, '{"index": 8}') == {"index": 8}
    with pytest.raises(
        ConfigError, match=r"--example=\[8\] is a list; give a number, or a JSON object"
    ):
        example_of(run, "[8]")
