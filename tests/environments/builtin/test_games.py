"""drawers and higher_lower: played by who knows how, by who guesses, and by who writes nonsense."""

from collections import Counter

import numpy as np
import pytest

from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS, counter, digit
from rlboost_jax.environments.builtin.drawers import Drawers, Log
from rlboost_jax.environments.builtin.higher_lower import HigherLower, guesses
from rlboost_jax.environments.protocol import ToolCall, ToolResult, Turn
from rlboost_jax.environments.runner import RememberedCalls
from tests.environments.builtin.playing import last, played

EPISODES = 300


def demonstrated(make, index, *, worked, rng=None):
    """An episode as the environment shows it itself."""
    made = []

    def remembered():
        made.append(make())
        return made[-1]

    rng = rng or np.random.default_rng(index)
    return played(
        remembered, lambda said, turn: made[0].demonstration(rng, worked), {"index": index}
    )


@pytest.mark.parametrize("form", ["tokens", "text"])
def test_who_looks_finds_the_digit(form):
    for index in range(30):
        _, steps = demonstrated(lambda: Drawers(2.0, 5, form), index, worked=True)
        assert last(steps).reward == last(steps).metrics["solved"] == 1.0
        assert sum(bool(s.turn.calls) for s in steps) == len(steps) - 1 >= 1


def test_who_guesses_is_right_one_time_in_ten():
    rng = np.random.default_rng(0)
    rewards = [
        last(demonstrated(Drawers, i, worked=False, rng=rng)[1]).reward for i in range(EPISODES)
    ]
    assert abs(np.mean(rewards) - 0.1) < 4 * np.sqrt(0.09 / EPISODES)


def test_notes_lead_on_as_often_as_is_said():
    looks = [len(demonstrated(lambda: Drawers(1.0, 3), i, worked=True)[1]) - 1 for i in range(600)]
    found = Counter(looks)
    for notes, share in enumerate([1 / 2, 1 / 4, 1 / 8, 1 / 8]):  # the last: three or more
        assert abs(found[notes + 1] / 600 - share) < 4 * np.sqrt(share * (1 - share) / 600)


def test_a_drawers_episode_in_tokens_by_hand():
    """The start's drawer is not the last one: the policy below opens what it reads, then guesses
    the digit that it has read."""
    said = []

    def policy(observation, turn):
        said.append(observation.tolist())
        token = said[-1][-2]
        return [token, END] if token >= counter(0) else [ANSWER, token, END]

    first, steps = played(lambda: Drawers(3.0, 6), policy, {"index": 3}, seed=5)
    assert first.tolist()[0] == BEGIN and all(tokens[-1] == EQUALS for tokens in said)
    assert last(steps).reward == 1.0 and len(steps) == len(said) > 2


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [END],
        [ANSWER, END],
        [ANSWER, digit(3)],
        [ANSWER, digit(1), digit(2), END],
        [counter(3)],
        [counter(3), counter(4), END],
        [digit(3), END],
        [99_999, END],
        [-1, END],
    ],
)
@pytest.mark.parametrize("make", [Drawers, HigherLower])
def test_any_other_turn_ends_the_episode(make, tokens):
    _, steps = played(make, lambda said, turn: tokens, {"index": 0})
    assert len(steps) == 1 and last(steps).reward == 0.0 and not steps[0].turn.calls


def test_an_empty_drawer_is_said_to_be_empty():
    opened = iter(range(96))
    _, steps = played(
        lambda: Drawers(0.0, 0), lambda said, turn: [counter(next(opened)), END], {"index": 1}
    )
    words = Counter(step.turn.results[0].content for step in steps)
    assert words["nothing"] >= len(steps) - 1


def test_an_episode_follows_from_its_seed_and_number():
    starts = {
        tuple(np.asarray(Drawers().reset({"index": index}, seed)).tolist())
        for index in range(20)
        for seed in range(20)
    }
    assert len(starts) > 80
    assert np.array_equal(Drawers().reset({"index": 7}, 3), Drawers().reset({"index": 7}, 3))


def test_looks_are_written_down_and_can_be_asked_for(tmp_path):
    log = tmp_path / "looks"

    def make():
        return Drawers(3.0, 6, "tokens", str(log))

    known = RememberedCalls()

    def look(observation, turn):
        token = observation.tolist()[-2]
        return [token, END] if token >= counter(0) else [ANSWER, token, END]

    _, steps = played(make, look, {"index": 3}, known=known)
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    done = [(r.call.key, r.content) for s in steps for r in s.turn.results]
    assert [tuple(line) for line in lines] == done and len(done) > 1
    tool = make().tools["look"]
    assert not tool.idempotent and tool.outcome is not None
    assert [tool.outcome(key) for key, _ in done] == [content for _, content in done]
    assert tool.outcome("another") is None

    _, again = played(make, look, {"index": 3}, known=known)  # an environment made again
    assert [s.step.reward for s in again] == [s.step.reward for s in steps]
    assert len(log.read_text().splitlines()) == len(lines), "it was looked again"


def test_a_log_that_is_not_there_knows_nothing(tmp_path):
    assert Log(tmp_path / "none").outcome("key") is None


def test_what_was_found_is_what_the_result_says():
    """And not what the environment knows itself: a journalled result counts."""
    made = Drawers(0.0, 0)
    made.reset({"index": 0}, 0)
    call = ToolCall(name="look", arguments={"drawer": 0})
    turn = Turn(
        index=0, tokens=(), text="", calls=(call,), results=(ToolResult(call=call, content="9"),)
    )
    assert made.step(turn).observation.tolist() == [digit(9), EQUALS]


@pytest.mark.parametrize("form", ["tokens", "text"])
def test_who_halves_always_wins(form):
    rewards = [
        last(demonstrated(lambda: HigherLower(form), i, worked=True)[1]).reward
        for i in range(EPISODES)
    ]
    assert np.mean(rewards) == 1.0


def test_who_takes_any_number_wins_less_often_than_half_the_time():
    rng = np.random.default_rng(0)
    rewards = [
        last(demonstrated(HigherLower, i, worked=False, rng=rng)[1]).reward for i in range(EPISODES)
    ]
    assert 0.2 < np.mean(rewards) < 0.7


def test_guesses_are_as_many_as_halving_needs():
    def worst(count):  # by trying: the deeper half, and the guess itself
        return 0 if count == 0 else 1 + worst(count // 2)

    assert [guesses(n) for n in range(1, 11)] == [worst(n) for n in range(1, 11)]


def test_higher_and_lower_are_true():
    for index in range(50):
        hidden = []

        def policy(said, turn, hidden=hidden):
            if turn == 0:
                hidden[:] = [said.tolist()[1], said.tolist()[2]]
                return [ANSWER, hidden[0], END]
            return [ANSWER, hidden[1], END]

        _, steps = played(HigherLower, policy, {"index": index})
        if steps[0].step.done:
            assert steps[0].step.reward == 1.0
        else:
            assert steps[0].step.observation.tolist() == [counter(1), EQUALS]  # above the lowest
        if len(steps) > 2:
            assert steps[1].step.observation.tolist() == [counter(0), EQUALS]


@pytest.mark.parametrize("text", ["", "five", "5.0", "-1", "9" * 5000, "٣", "²"])
def test_text_that_is_no_number(text):
    _, steps = played(lambda: HigherLower("text"), lambda said, turn: text, {"index": 0})
    assert last(steps).done


def test_options_are_checked():
    for make in (
        lambda: Drawers(-1.0),
        lambda: Drawers(1.0, 96),
        lambda: Drawers(form="x"),
        lambda: HigherLower("x"),
    ):
        with pytest.raises(ValueError, match=r"choose|neither"):
            make()
