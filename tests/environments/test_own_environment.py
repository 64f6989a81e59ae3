"""The environment that `docs/tutorials/own-environment.md` has a reader save, as it is there."""

import asyncio
import types
from typing import Any

import pytest

from rlboost_jax.environments.protocol import ToolCall, Turn
from rlboost_jax.environments.runner import EpisodeRunner, RememberedCalls
from rlboost_jax.settings.config_loading import run_config
from tests.patience import PATIENCE_SECONDS
from tests.tutorial import ROOT, tutorial

PAGE = ROOT / "docs" / "tutorials" / "own-environment.md"
OPEN = ToolCall(name="open", arguments={})


@pytest.fixture(scope="module")
def locker() -> Any:
    made: Any = types.ModuleType("locker")
    exec(tutorial(PAGE).files["locker.py"], made.__dict__)
    return made


def test_it_has_thirty_lines_at_most() -> None:
    environment, _, _ = tutorial(PAGE).files["locker.py"].partition("def get_config")
    assert "class Locker" in environment
    assert len([line for line in environment.splitlines() if line.strip()]) <= 30


def test_its_settings_are_a_runs(locker: Any) -> None:
    assert run_config(locker.get_config()).environment.name == "locker:Locker"


async def played(locker: Any, *turns: Turn) -> list[Any]:
    runner = EpisodeRunner(
        locker.Locker, ledger=RememberedCalls(), time_limit_seconds=PATIENCE_SECONDS
    )
    said: list[Any] = [await runner.reset({"index": 3}, 7)]
    said += [(await runner.step(turn, key=f"turn-{turn.index}")).step for turn in turns]
    await runner.close()
    return said


def test_who_opens_the_locker_can_name_the_digit(locker: Any) -> None:
    looks = Turn(index=0, tokens=(1,), text="", calls=(OPEN,))
    first, looked = asyncio.run(played(locker, looks))
    (message,) = looked.observation
    assert (first, message["role"], looked.done, looked.reward) == ("?", "tool", False, 0.0)
    digit = message["content"]
    assert digit in "0123456789" and len(digit) == 1
    for text in "0123456789":
        names = Turn(index=1, tokens=(1,), text=text)
        again, _, named = asyncio.run(played(locker, looks, names))[0:3]
        assert again == "?" and named.done
        assert named.reward == named.metrics["solved"] == float(text == digit)
