"""verifiers, the package itself: tasksets of its v1, for whole episodes.

Those in its wheel need a network, an agent of the command line or a container; the ones in
plugins/ are of its different manners: rewards and metrics, tools, a user, stops, a judge that is a
program.
"""

import asyncio
from typing import Any

import pytest

from tests.environments.adapters.transcript import PLUGINS, Job, played, transcripts

pytest.importorskip("verifiers.v1", reason="no verifiers: see make test-adapters")

from rlboost_jax.environments.adapters.verifiers import Verifiers
from rlboost_jax.platform.mistakes import ConfigError

NAME = "verifiers"


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS), prepend=":")


def job(taskset: str, *turns: Any, index: int = 1, **options: Any) -> Job:
    return Job(
        name=NAME, options={"taskset": taskset, **options}, example={"index": index}, turns=turns
    )


CALLS = [{"text": "so", "calls": [["add", {"amount": n}]]} for n in (3, 2)]
CASES: dict[str, tuple[Job, float]] = {
    "reward and metric": (job("reversed_words", "enots"), 1.1),
    "tools of an episode": (job("counted_steps", *CALLS, "done"), 1.0),
    "a user": (job("guessing_user", *(str(n) for n in range(12, 20)), index=3), 0.0),
    "a stop": (job("stopped_talk", "one", "two", "three", "four"), 0.5),
    "several parts": (job("scored_lists", "[3, 1, 2]", "[1, 2, 3]"), 0.75),
}


def test_whole_episodes_repeat_in_every_process_and_are_worth_what_they_are() -> None:
    jobs = [each for each, _ in CASES.values()]
    for (name, (_, worth)), said in zip(CASES.items(), transcripts(jobs, times=2), strict=True):
        assert said[-1]["done"], (name, said)
        assert sum(step["reward"] for step in said[2:]) == pytest.approx(worth), (name, said)


def test_a_call_that_is_none_is_answered_and_not_made() -> None:
    calls = {"calls": [["subtract", {"amount": 1}], ["add", {"amount": 5}]]}
    said = asyncio.run(played(job("counted_steps", calls, "done")))
    assert said[1] == ["add"]
    one, other = said[2]["observation"]
    assert "no tool 'subtract'" in one["content"] and one["tool_call_id"] == "c"
    assert other["content"] == "total 5"
    assert said[-1]["reward"] == 1.0


def test_training_and_evaluation_are_apart() -> None:
    async def asked(index: int) -> str:
        environment = Verifiers("reversed_words")
        try:
            said = await environment.reset({"index": index}, 0)
            return said[-1]["content"]
        finally:
            await environment.close()

    async def both() -> tuple[set[str], set[str]]:
        train = {await asked(index) for index in range(56) if index % 8}
        return train, {await asked(index) for index in range(0, 80, 8)}

    train, heldout = asyncio.run(both())
    assert len(train | heldout) == 40 and train and heldout and not train & heldout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"taskset": "no_such_taskset"}, "no_such_taskset"),
        ({"taskset": "reversed_words", "taskset_options": {"repeat": 2}}, "repeat"),
        ({"taskset": "guessing_user", "policy": "guesser"}, "known: player"),
        ({"taskset": "reversed_words", "env": "user-sim"}, "assistant, user"),
    ],
)
def test_a_wrong_option_is_a_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Verifiers(**options)
    assert "\n" not in str(caught.value)


def test_a_failure_inside_is_no_fault_of_the_policys() -> None:
    with pytest.raises(Exception, match="ledger is closed"):
        asyncio.run(played(job("scored_lists", "no list", "no list")))
