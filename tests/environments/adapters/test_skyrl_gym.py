"""skyrl-gym, the package itself: its environments for whole episodes, on rows as SkyRL has them."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.environments.adapters.skyrl_gym import SkyRLGym
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.platform.mistakes import ConfigError
from tests.environments.adapters.transcript import Job, played, transcripts

pytest.importorskip("skyrl_gym", reason="no skyrl-gym: see make test-adapters")
NAME = "skyrl_gym"
QUESTION = [{"role": "user", "content": "What is 40 + 2?"}]
SUM = {"prompt": QUESTION, "reward_spec": {"ground_truth": "42"}, "extra_info": {}}


@pytest.fixture
def databases(tmp_path: Path) -> Path:
    folder = tmp_path / "spider" / "database" / "shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as database:
        database.execute("create table fruit (name text, price integer)")
        database.executemany("insert into fruit values (?, ?)", [("fig", 3), ("plum", 2)])
    return tmp_path


def sql_job(databases: Path) -> Job:
    row = {
        "prompt": QUESTION,
        "reward_spec": {"ground_truth": "select name from fruit where price = 3"},
        "db_id": "shop",
        "data": "spider",
        "max_turns": 4,
    }
    turns = [
        "<think>look</think><sql>select price from fruit</sql>",
        "<think>so</think><solution>select name from fruit where price > 2</solution>",
    ]
    options = {"env": "text2sql", "env_config": {"db_path": str(databases)}}
    return Job(name=NAME, options=options, example=row, turns=turns)


def jobs_of(databases: Path) -> dict[str, tuple[Job, float]]:
    """By environment: an episode, and what it is worth."""
    tests = [{"input": "2 3", "output": "5", "testtype": "stdin"}]
    code = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    lcb = {"prompt": QUESTION, "reward_spec": {"ground_truth": json.dumps(tests)}}
    aime = {"prompt": QUESTION, "reward_model": {"ground_truth": "42"}}

    def job(env: str, row: dict[str, Any], *turns: str, **options: Any) -> Job:
        return Job(name=NAME, options={"env": env, **options}, example=row, turns=turns)

    return {
        "gsm8k": (job("gsm8k", SUM, "It is #### 42"), 1.0),
        "gsm8k_multi_turn": (job("gsm8k_multi_turn", SUM, "#### 41", "no", "#### 42"), 1.04),
        "aime": (job("aime", aime, "Answer: 42"), 1.0),
        "lcb": (job("lcb", lcb, code), 1.0),
        "text2sql": (sql_job(databases), 1.0),
        "searchcode": (
            job(
                "searchcode",
                {**SUM, "max_turns": 3},
                "<tool><python>print(40 + 2)</python></tool>",
                "<solution>#### 42</solution>",
                allow_not_repeating=True,
            ),
            1.0,
        ),
    }


def test_whole_episodes_repeat_in_every_process_and_are_worth_what_they_are(
    databases: Path,
) -> None:
    cases = jobs_of(databases)
    jobs = [job for job, _ in cases.values()]
    for (name, (_, worth)), said in zip(cases.items(), transcripts(jobs, times=2), strict=True):
        assert said[-1]["done"], name
        assert sum(step["reward"] for step in said[2:]) == pytest.approx(worth), (name, said)
    assert len(cases) == 6


def test_the_policy_reads_what_a_tool_found(databases: Path) -> None:
    said = asyncio.run(played(sql_job(databases)))
    (message,) = said[2]["observation"]
    assert message["role"] == "user" and "3" in message["content"] and "2" in message["content"]


def test_parts_of_a_row_may_be_json_and_a_prompt_a_text() -> None:
    row = {"prompt": "What is 40 + 2?", "reward_spec": json.dumps({"ground_truth": "42"})}
    environment = SkyRLGym("gsm8k")
    assert environment.reset(row, 0) == ({"role": "user", "content": "What is 40 + 2?"},)
    step = environment.step(Turn(index=0, tokens=(1,), text="#### 42"))
    assert (step.reward, step.done, step.metrics["solved"]) == (1.0, True, 1.0)


def test_an_environment_of_ones_own_is_registered() -> None:
    environment = SkyRLGym("rlm", register="skyrl_gym.envs.rlm.env:BaseRLMEnv")
    system, *_ = environment.reset({"prompt": "How long is it?"}, 0)
    assert system["role"] == "system"
    # It takes back the last thing it said, which has been sampled from by now.
    with pytest.raises(ValueError, match="takes back"):
        environment.step(Turn(index=0, tokens=(1,), text="```repl\nprint(len(context))\n```"))
    environment.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"env": "gsm9k"}, "did you mean 'gsm8k'"),
        ({"env": "search"}, "allow_not_repeating"),
        ({"env": "text2sql", "env_config": {"dbpath": "x"}}, "did you mean 'db_path'"),
    ],
)
def test_a_wrong_option_is_a_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SkyRLGym(**options)
