"""OpenEnv's client against servers of its own, on this host's loopback."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rlboost_jax.environments.adapters.openenv import OpenEnv
from rlboost_jax.environments.runner import EnvironmentFailed
from tests.environments.adapters.transcript import PLUGINS, Job, played, transcripts

pytest.importorskip("openenv.core", reason="no openenv-core: see make test-adapters")
NAME = "openenv"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Address of the servers."""
    with subprocess.Popen(
        [sys.executable, str(PLUGINS / "openenv_servers.py")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def job(served: str, name: str, *turns: Any, index: int = 3, **options: Any) -> Job:
    options = {"base_url": f"{served}/{name}", **options}
    return Job(name=NAME, options=options, example={"index": index}, turns=turns)


def jobs_of(served: str) -> dict[str, tuple[Job, float]]:
    """By server: an episode, and what it is worth."""
    west, north = '{"dx": -1, "dy": 0}', '{"dx": 0, "dy": -1}'
    return {
        "echo": (job(served, "echo", "hello"), 0.75),
        "guess": (job(served, "guess", *(str(n) for n in range(1, 51))), 1.0),
        "walk": (job(served, "walk", *walked(3, west, north), action="json"), 1.0),
        "dice": (job(served, "dice", "roll", "roll", "stop"), rolled(3, 2) / 20),
        "counter": (job(served, "counter", added(1, 2), added(2), with_tools=True), 1.0),
    }


def added(*amounts: int) -> dict[str, Any]:
    """A turn of calls."""
    return {"calls": [["add", {"amount": amount}] for amount in amounts]}


def walked(seed: int, west: str, north: str) -> list[str]:
    rng = random.Random(seed)
    return [west] * rng.randint(1, 4) + [north] * rng.randint(1, 4)


def rolled(seed: int, times: int) -> int:
    rng = random.Random(seed)
    return sum(rng.randint(1, 6) for _ in range(times))


def test_whole_episodes_repeat_in_every_process_and_are_worth_what_they_are(served: str) -> None:
    cases = jobs_of(served)
    jobs = [each for each, _ in cases.values()]
    for (name, (_, worth)), said in zip(cases.items(), transcripts(jobs, times=2), strict=True):
        assert said[-1]["done"], name
        assert sum(step["reward"] for step in said[2:]) == pytest.approx(worth), (name, said)


def test_a_servers_tools_are_the_policys_and_are_called_again_in_a_new_session(
    served: str,
) -> None:
    turns = [added(3, 1), {"calls": [["sub", {}]]}]
    twice = [
        asyncio.run(played_some(job(served, "counter", *turns, with_tools=True), steps=2))
        for _ in range(2)
    ]
    assert twice[0] == twice[1]
    _, tools, first, second = twice[0]
    assert tools == ["add"]
    contents = [m["content"] for m in first["observation"]]
    assert contents == ["total 3", "total 4"]
    assert "no tool 'sub'" in second["observation"][0]["content"]


async def played_some(job: Job, *, steps: int) -> list[Any]:
    return (await played(job, most_turns=steps))[: steps + 2]


def test_an_action_that_is_no_json_is_said_to_the_policy(served: str) -> None:
    turns = ("north!", "[1]", "[" * 100_000)
    said = asyncio.run(played_some(job(served, "walk", *turns, action="json"), steps=3))
    assert all("No action" in step["observation"] for step in said[2:5]) and len(said) == 5


def test_an_observation_of_several_fields_is_json_and_one_can_be_chosen(served: str) -> None:
    all_of_it = asyncio.run(played_some(job(served, "walk", "no", action="json"), steps=1))[0]
    one = asyncio.run(
        played_some(
            job(served, "walk", "no", action="json", observation="x", system_prompt="Walk."),
            steps=1,
        )
    )[0]
    assert set(json.loads(all_of_it[0]["content"])) == {"x", "y"}
    assert one[0] == {"role": "system", "content": "Walk."}
    assert one[1]["content"] == str(json.loads(all_of_it[0]["content"])["x"])


def test_what_a_server_does_not_take_is_no_fault_of_the_policys(served: str) -> None:
    with pytest.raises(EnvironmentFailed, match="Server error"):
        asyncio.run(played(job(served, "echo", "hello", action="no_such_field")))
    with pytest.raises(EnvironmentFailed, match="Failed to connect"):
        asyncio.run(played(job("http://127.0.0.1:9", "echo", "hello")))


def test_an_index_is_a_seed_and_the_rest_of_a_row_goes_to_reset() -> None:
    sent: list[Any] = []

    class Client:
        async def connect(self) -> None: ...

        async def reset(self, **given: Any) -> Any:
            sent.append(given)
            raise ConnectionError

    environment = OpenEnv("http://127.0.0.1:9")
    environment._client = Client()
    for example in ({"index": 7}, {"index": 7, "level": 2}, {"level": 2}):
        with pytest.raises(ConnectionError):
            asyncio.run(environment.reset(example, 9))
    assert sent == [{"seed": 7}, {"seed": 7, "level": 2}, {"seed": 9, "level": 2}]
