"""TextArena, the package itself: whole games, the same in every process, beside any other games."""

import asyncio
import random
from typing import Any

import pytest

from rlboost_jax.environments.adapters.textarena import INVALID_MOVE, TextArena
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.platform.mistakes import ConfigError
from tests.environments.adapters.transcript import Job, played, transcripts

pytest.importorskip("textarena", reason="no textarena: see make test-adapters")
NAME = "textarena"
# A game, and moves that keep it going.
GAMES: dict[str, list[Any]] = {
    "GuessTheNumber-v0": [f"[{n}]" for n in range(1, 21)],
    "Mastermind-v0": ["[1 2 3 4]", "[4 3 2 1]", "[2 3 4 5]", "[6 5 4 3]"],
    "TowerOfHanoi-v0": ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"],
    "2048-v0-ultra-easy": ["[left]", "[down]", "[right]", "[up]"],
    "FrozenLake-v0-random": ["[right]", "[down]"],
    "Bandit-v0": ["[red]", "[blue]", "[green]"],
    "Blackjack-v0": ["[Hit]", "[Stand]"],
    "Secretary-v0": ["[continue]", "[continue]", "[accept]"],
    "Minesweeper-v0-small": ["[0 0]", "[4 4]", "[2 2]"],
    "LightsOut-v0": ["[0 0]", "[1 1]", "[2 2]"],
    "PegJump-v0": ["[1 4]", "[6 1]"],
    "Countdown-v0": ["[0 1 +]", "[0 1 *]"],
    "Cryptarithm-v0": ["[S 9]", "[M 1]"],
}

LONG = "Cryptarithm-v0"  # it goes on for 100 turns


def turn(index: int, text: str) -> Turn:
    return Turn(index=index, tokens=(1,), text=text)


def test_whole_games_repeat_in_every_process() -> None:
    jobs = [
        Job(name=NAME, options={"game": game}, example={"index": index}, turns=moves)
        for game, moves in GAMES.items()
        for index in (0, 7)
    ]
    for job, said in zip(jobs, transcripts(jobs, times=3), strict=True):
        assert said[-1]["done"] or job.options["game"] == LONG, job
        assert all(step["observation"] for step in said[2:-1]), job


def test_another_example_is_another_game() -> None:
    jobs = [
        Job(name=NAME, options={"game": "Mastermind-v0"}, example=example, turns=["[1 2 3 4]"])
        for example in [{"index": i} for i in range(12)]
    ]
    said = {repr(asyncio.run(played(job))[2]["observation"]) for job in jobs}
    assert len(said) > 2


def test_games_side_by_side_do_not_draw_from_one_another() -> None:
    moves = GAMES["2048-v0-ultra-easy"]

    def alone() -> list[Any]:
        game = TextArena("2048-v0-ultra-easy")
        return [game.reset({"index": 3}, 0), *(game.step(turn(i, moves[i])) for i in range(4))]

    expected = alone()
    mine, other = TextArena("2048-v0-ultra-easy"), TextArena("2048-v0-ultra-easy")
    said: list[Any] = [mine.reset({"index": 3}, 0)]
    other.reset({"index": 4}, 0)
    for index in range(4):
        random.random()
        other.step(turn(index, moves[index]))
        said.append(mine.step(turn(index, moves[index])))
    assert said == expected


def test_the_process_keeps_its_own_random_numbers() -> None:
    random.seed(11)
    expected = [random.random() for _ in range(3)]
    random.seed(11)
    game = TextArena("GuessTheNumber-v0")
    said = [random.random()]
    game.reset({"index": 3}, 0)
    said.append(random.random())
    game.step(turn(0, "[3]"))
    assert [*said, random.random()] == expected


def test_the_policy_hears_only_what_is_new_and_not_itself() -> None:
    game = TextArena("GuessTheNumber-v0")
    assert "Guess The Number" in game.reset({"index": 3}, 0)
    step = game.step(turn(0, "I say [20]."))
    assert step.observation == "The target number is lower." and not step.done


def test_a_won_game_is_solved() -> None:
    game = TextArena("GuessTheNumber-v0")
    game.reset({"index": 3}, 0)
    low, high, step = 1, 20, None
    for index in range(6):
        guess = (low + high) // 2
        step = game.step(turn(index, str(guess)))  # without brackets, which the game wants
        if step.done:
            break
        low, high = (guess + 1, high) if "higher" in str(step.observation) else (low, guess - 1)
    assert step is not None and step.done
    assert (step.reward, step.metrics["solved"]) == (1.0, 1.0)


@pytest.mark.parametrize("game", ["Countdown-v0", "Secretary-v0", "Mastermind-v0"])
def test_moves_that_are_none_end_a_game_with_a_number(game: str) -> None:
    said = asyncio.run(played(Job(name=NAME, options={"game": game}, turns=["no move at all"])))
    assert said[-1]["done"] and said[-1]["metrics"]["invalid_move"] == 1.0
    assert INVALID_MOVE <= said[-1]["reward"] < 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"game": "Mastermind"}, "did you mean 'Mastermind-v0'"),
        ({"game": "Mastermind-v0-raw"}, "did you mean 'Mastermind-v0"),
        ({"game": "TwentyQuestions-v0"}, "cannot be made here"),
        ({"game": "Mastermind-v0", "options": {"colours": 3}}, "cannot be made here.*colours"),
    ],
)
def test_a_wrong_option_is_a_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TextArena(**options)


def test_games_of_several_players_are_refused() -> None:
    with pytest.raises(ValueError, match="several players"):
        TextArena("QuantumTicTacToe-v0").reset({"index": 0}, 0)
