"""Adapters where their packages are not there, or stand-ins of their surface are: so that they do
not rot between two runs of `make test-adapters`."""

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlboost_jax.environments.adapters.draws import OwnDraws
from rlboost_jax.environments.adapters.packages import (
    HELDOUT_EVERY,
    is_heldout,
    known,
    number_of,
    place_of,
)
from rlboost_jax.environments.episode_exercises import Numbers
from rlboost_jax.environments.factories import maker_of
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.validation.environment_checks import BUILT_IN_ENVIRONMENTS

ADAPTERS = {
    "openenv": ({"base_url": "http://127.0.0.1:9"}, "openenv", "[openenv]"),
    "reasoning_gym": ({"dataset": "gcd"}, "reasoning_gym", "[reasoning-gym]"),
    "skyrl_gym": ({"env": "gsm8k"}, "skyrl_gym", "[skyrl-gym]"),
    "textarena": ({"game": "Mastermind-v0"}, "textarena", "[textarena]"),
    "tinker_cookbook": ({"builder": "a:B"}, "tinker_cookbook", "pip install tinker-cookbook"),
    "verifiers": ({"taskset": "mine"}, "verifiers", "[verifiers]"),
}


def turn(text: str) -> Turn:
    return Turn(index=0, tokens=(1,), text=text)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_package_that_is_not_there_is_a_line_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, package, install = ADAPTERS[name]
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # as if there were none
    make = maker_of(name, options)  # a wrong option is found without it
    with pytest.raises(ConfigError) as caught:
        make()
    said = str(caught.value)
    assert repr(name) in said and install in said and "\n" not in said


def test_every_adapter_is_built_in() -> None:
    ours = {n for n, path in BUILT_IN_ENVIRONMENTS.items() if ".adapters." in path}
    assert ours == set(ADAPTERS)


def test_places_are_those_of_the_runs_own_examples() -> None:
    for heldout in (False, True):
        numbers = Numbers(100, heldout=heldout)
        examples = [numbers[place][0] for place in range(100)]
        assert [place_of(example, 5) for example in examples] == [
            (place, heldout) for place in range(100)
        ]
        assert all(is_heldout(example) is heldout for example in examples)
    assert HELDOUT_EVERY == 8
    assert number_of({}, 5) == 5 and not is_heldout({"question": "?"})


@pytest.mark.parametrize("index", [-1, 2.5, "7", True, None])
def test_an_index_that_is_none_is_said(index: Any) -> None:
    with pytest.raises(ValueError, match="index is"):
        number_of({"index": index}, 0)


def test_a_long_list_of_names_is_cut() -> None:
    names = [f"game-{number:02}" for number in range(40)]
    with pytest.raises(ConfigError, match="did you mean 'game-07'"):
        known("game", "game07", names)
    with pytest.raises(ConfigError, match="game-11 and 28 more"):
        known("game", "xyz", names)


def test_draws_go_on_where_they_stopped_and_leave_the_process_its_own() -> None:
    reference = random.Random(3)
    random.seed(4)
    outside = random.Random(4)
    one, other = OwnDraws(3), OwnDraws(99)
    for _ in range(3):
        with one.used():
            assert random.random() == reference.random()
        with other.used():
            random.random()
        assert random.random() == outside.random()


def test_draws_are_kept_apart_where_one_raises() -> None:
    reference, own = random.Random(3), OwnDraws(3)
    with pytest.raises(KeyError), own.used():
        random.random()
        raise KeyError
    reference.random()
    with own.used():
        assert random.random() == reference.random()


def module(name: str, monkeypatch: pytest.MonkeyPatch, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)
    return made


class Game:
    """As a game of TextArena is, with the faults that some have."""

    env_id = "Flip-v0"

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds

    def reset(self, num_players: int, seed: int) -> None:
        random.seed(seed)
        self.state: Any = SinglePlayer()
        self.said: list[Any] = [(-1, f"Guess {random.randint(0, 9)}.", "PROMPT")]

    def get_observation(self) -> Any:
        said, self.said = self.said, []
        return 0, said

    def step(self, action: str) -> Any:
        self.said += [(0, action, "PLAYER_ACTION"), ("PLAYER_ACTION", 0, action)]
        self.said.append((-1, f"{action}? {random.randint(0, 9)}.", "GAME_MESSAGE"))
        self.rounds -= 1
        self.fault = action == "[fault]"
        return self.fault or self.rounds == 0, {}

    def close(self) -> Any:
        if self.fault:
            return {0: "Bad action format."}, {0: {"reason": "Invalid Move: 0.25"}}
        return {0: 1}, {0: {"turn_count": 2}}


class SinglePlayer:
    """What tells a game for one."""


class Formatting:
    """What puts a move in brackets."""


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(default_wrappers=[Formatting])
    registry = {"Flip-v0": spec, "Flip-v0-raw": spec, "Flip-v0-train": spec}
    module(
        "textarena",
        monkeypatch,
        make=lambda name, **options: Game(**options),
        SinglePlayerState=SinglePlayer,
        wrappers=SimpleNamespace(ActionFormattingWrapper=Formatting),
    )
    module("textarena.envs", monkeypatch)
    module("textarena.envs.registration", monkeypatch, ENV_REGISTRY=registry)


@pytest.mark.usefixtures("arena")
def test_a_game_of_one_player() -> None:
    def game() -> list[Any]:
        environment = maker_of("textarena", {"game": "Flip-v0"})()
        said: list[Any] = [environment.reset({"index": 3}, 0)]
        return [*said, environment.step(turn("up")), environment.step(turn("[down]"))]

    first, step, last = game()
    assert str(first).startswith("Guess ") and step.observation.startswith("[up]? ")
    assert last.done and (last.reward, last.metrics["solved"]) == (1.0, 1.0)
    random.seed(8)
    assert game() == [first, step, last]


@pytest.mark.usefixtures("arena")
def test_a_reward_in_the_place_of_its_reason_is_found() -> None:
    environment = maker_of("textarena", {"game": "Flip-v0"})()
    environment.reset({"index": 3}, 0)
    step = environment.step(turn("fault"))
    assert (step.done, step.reward) == (True, 0.25)  # type: ignore[union-attr]


def test_a_row_of_skyrl_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    class Adds:
        def __init__(self, env_config: Any, extras: Any) -> None:
            self.answer = extras["reward_spec"]["ground_truth"]

        def init(self, prompt: Any) -> Any:
            return prompt, {}

        def step(self, action: str) -> Any:
            right = action == self.answer
            observed = [] if right else [{"role": "user", "content": "again"}]
            return {"observations": observed, "reward": float(right), "done": right, "metadata": {}}

        def get_metrics(self) -> Any:
            return {"steps": 2, "note": "a text"}

        def close(self) -> None: ...

    registry = {"adds": SimpleNamespace(entry_point=f"{__name__}:Adds")}
    module("skyrl_gym", monkeypatch, registry=registry, make=lambda name, **given: Adds(**given))
    module(__name__.partition(":")[0], monkeypatch)
    environment = maker_of("skyrl_gym", {"env": "adds"})()
    row = {"prompt": '[{"role": "user", "content": "1 + 1"}]', "reward_spec": {"ground_truth": "2"}}
    assert environment.reset(row, 0) == ({"role": "user", "content": "1 + 1"},)
    again, right = environment.step(turn("3")), environment.step(turn("2"))
    assert again.observation == ({"role": "user", "content": "again"},)  # type: ignore[union-attr]
    assert right.metrics == {"solved": 1.0, "steps": 2.0}  # type: ignore[union-attr]
