"""reasoning-gym, the package itself: problems repeat, rewards are its own, and both sides apart."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlboost_jax.environments.adapters.reasoning_gym import NOT_REPEATING, ReasoningGym
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.platform.mistakes import ConfigError
from tests.environments.adapters.transcript import Job, transcripts

gym = pytest.importorskip("reasoning_gym", reason="no reasoning-gym: see make test-adapters")
DATASETS = ("chain_sum", "leg_counting", "spell_backward", "basic_arithmetic", "gcd", "lcm")
NAME = "reasoning_gym"
ODD = {"composite": {"datasets": [{"name": "gcd"}, {"name": "chain_sum", "weight": 2.0}]}}
# They search for a problem for seconds at a time, on a host like CI's.
SLOW = frozenset({"knight_swap", "futoshiki", "puzzle24", "arc_agi", "intermediate_integration"})


def turn(text: str) -> Turn:
    return Turn(index=0, tokens=(1,), text=text)


@pytest.mark.parametrize("dataset", DATASETS)
def test_right_answers_are_worth_one_and_wrong_ones_less(dataset: str) -> None:
    problems = gym.create_dataset(dataset, seed=0, size=10_000)
    environment = ReasoningGym(dataset)
    system, question = environment.reset({"index": 3}, 0)
    assert system["role"] == "system" and "<answer>" in system["content"]
    tried = (problems[(3 + 7919 * again) % 10_000] for again in range(200))  # some: evaluation
    asked = next(p for p in tried if p["question"] == question["content"])
    right = environment.step(turn(f"<answer>{asked['answer']}</answer>"))
    wrong = environment.step(turn("<answer>nothing of the kind</answer>"))
    silent = environment.step(turn(str(asked["answer"])))
    assert right.reward == 1.0 and right.done and right.metrics["solved"] == 1.0
    assert wrong.reward < 1.0 and wrong.metrics["answered"] == 1.0
    assert silent.reward == 0.0 and silent.metrics["answered"] == 0.0


def test_an_answer_that_its_verifier_cannot_read_is_wrong() -> None:
    environment = ReasoningGym("chain_sum")
    environment.reset({"index": 0}, 0)

    def stumbles(answer: str, entry: Any) -> float:
        raise TypeError("'int' object is not iterable")

    environment._dataset = SimpleNamespace(score_answer=stumbles)
    step = environment.step(turn("<answer>7</answer>"))
    assert (step.reward, step.metrics["unreadable"]) == (0.0, 1.0)


def test_training_and_evaluation_share_no_question() -> None:
    environment = ReasoningGym("gcd", config={"max_value": 12}, size=2000)  # it repeats itself
    sides: dict[bool, set[str]] = {False: set(), True: set()}
    for heldout, questions in sides.items():
        for index in range(0 if heldout else 1, 4000, 8):
            said = environment.reset({"index": index}, 0)
            questions.add(said[-1]["content"])
    assert len(sides[True]) > 5 and len(sides[False]) > 50
    assert not sides[True] & sides[False]


def test_every_generator_repeats_in_a_process_of_its_own() -> None:
    names = sorted(set(gym.factory.DATASETS) - NOT_REPEATING - SLOW)
    jobs = [
        Job(
            name=NAME,
            options={"dataset": name, "size": 200, "config": ODD.get(name, {})},
            example={"index": index},
            turns=["<answer>7</answer>"],
        )
        for name in names
        for index in (0, 5)
    ]
    said = transcripts(jobs, times=2)
    assert len(names) > 95 and all(episode[-1]["done"] for episode in said)


def test_the_ones_that_do_not_are_named_and_refused() -> None:
    assert set(gym.factory.DATASETS) >= NOT_REPEATING
    for name in NOT_REPEATING:
        with pytest.raises(ConfigError, match="allow_not_repeating"):
            ReasoningGym(name)
        first, again = (_answer(name), _answer(name))
        assert first != again  # else it can be taken off the list
        ReasoningGym(name, allow_not_repeating=True)


def _answer(name: str) -> Any:
    problems = gym.create_dataset(name, seed=0, size=200)
    return [problems[index]["answer"] for index in range(60)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"max_term": 3}}, "did you mean 'max_terms'"),
        ({"dataset": "chain_sum", "config": {"min_terms": 9, "max_terms": 3}}, "chain_sum"),
        ({"dataset": "composite"}, "at least one dataset"),
    ],
)
def test_a_wrong_option_is_a_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ReasoningGym(**options)
