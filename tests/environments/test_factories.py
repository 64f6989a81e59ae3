"""Environments by name: what is wrong is one line that says what to change."""

from typing import Any

import pytest

from rlboost_jax.environments.factories import check_made, maker_of
from rlboost_jax.platform.mistakes import ConfigError


class Game:
    def __init__(self, size: int, *, hard: bool = False) -> None:
        self.size, self.hard = size, hard

    def reset(self, example: Any, seed: int) -> str:
        return "go"

    def step(self, turn: Any) -> None: ...


def anything(**options: Any) -> dict[str, Any]:
    return options


NO_FACTORY = 3
HERE = __name__


def test_each_is_made_with_the_options() -> None:
    make = maker_of(f"{HERE}:Game", {"size": 4, "hard": True})
    one, other = make(), make()
    assert isinstance(one, Game) and (one.size, one.hard) == (4, True) and one is not other
    assert maker_of(f"{HERE}:anything", {"a": [1]})() == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("game", {}, "environment.name 'game' does not exist; "),
        ("no_such_module:Game", {}, "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Gane", {"size": 1}, "did you mean 'Game'?"),
        (f"{HERE}:NO_FACTORY", {}, "is int, which makes nothing"),
        (f"{HERE}:Game", {"size": 1, "sice": 2}, "takes no 'sice'; did you mean 'size'?"),
        (f"{HERE}:Game", {}, "needs 'size'; set environment.options"),
        (f"{HERE}:Game", {"size": "big"}, "size is 'big': expected `int`, got `str`"),
    ],
)
def test_what_is_wrong_is_said(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        maker_of(name, options)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_made_has_to_be_an_environment() -> None:
    check_made("x", Game(1))
    with pytest.raises(ConfigError, match="makes dict, which has no reset"):
        check_made("x", {})
