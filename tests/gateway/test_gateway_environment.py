"""A harness as an environment: its calls are observations, and turns answer them."""

import asyncio
import datetime
import json
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rlboost_jax.environments.factories import maker_of
from rlboost_jax.environments.protocol import ToolCall, Turn
from rlboost_jax.environments.runner import EnvironmentFailed, EpisodeRunner, RememberedCalls
from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.backend import Model
from rlboost_jax.gateway.client_calls import CallSampling, TokenCall
from rlboost_jax.gateway.gateway_session import Ask
from rlboost_jax.gateway.harness_channel import Channels
from tests.endpoints import free_port
from tests.patience import PATIENCE_SECONDS

AGENT = Path(__file__).with_name("agent.py")
EXAMPLE = {"question": "What is 3 + 4?"}
HEAD = """
import json, os, sys, urllib.request
def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
def chat(*messages, **more):
    body = {"model": "gpt-4o", "messages": list(messages), **more}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]
def user(text):
    return {"role": "user", "content": text}
"""


def runner_of(command: list[str], **options: Any) -> EpisodeRunner:
    make = maker_of("gateway", {"command": command, **options})
    return EpisodeRunner(make, ledger=RememberedCalls(), time_limit_seconds=PATIENCE_SECONDS)


@pytest.fixture
def harness(tmp_path: Path) -> Callable[..., EpisodeRunner]:
    """Write a program's lines to a file, and run it as the harness."""

    def make(lines: str, **options: Any) -> EpisodeRunner:
        path = tmp_path / "harness.py"
        path.write_text(HEAD + textwrap.dedent(lines))
        return runner_of([sys.executable, str(path)], **options)

    return make


def turn_of(index: int, text: str, **more: Any) -> Turn:
    return Turn(index=index, tokens=(5, 6), text=text, logprobs=(-0.5, -0.25), **more)


async def test_an_agent_that_knows_nothing_of_us(tmp_path: Path) -> None:
    runner = runner_of([sys.executable, str(AGENT), "--turns=3"])
    said = await runner.reset(EXAMPLE, 1)
    assert said == ({"role": "user", "content": EXAMPLE["question"]},)
    assert [tool.name for tool in runner.tools.values()] == ["length"]
    for index in range(2):
        step = (await runner.step(turn_of(index, "abc"), key="k")).step
        assert step.observation == ({"role": "user", "content": f"{index}: 3 characters."},)
        assert not (step.done or step.anew)
    step = (await runner.step(turn_of(2, "abc"), key="k")).step
    assert step.done and step.reward == 0.0
    await runner.close()


async def test_the_harness_carries_its_calls_out_itself(tmp_path: Path) -> None:
    runner = runner_of([sys.executable, str(AGENT), "--turns=2"])
    await runner.reset(EXAMPLE, 1)
    call = ToolCall(name="length", arguments={"text": "x"}, id="abc")
    stepped = await runner.step(turn_of(0, "", calls=(call,)), key="k")
    tool, _ = stepped.step.observation
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "abc")  # type: ignore[index]
    assert stepped.turn.results == ()
    await runner.close()


async def test_an_example_with_what_tables_have_is_json(
    harness: Callable[..., EpisodeRunner],
) -> None:
    runner = harness('chat(user(json.dumps(json.loads(os.environ["RLBOOST_EXAMPLE"]))))')
    example = {"when": datetime.date(2024, 2, 29), "all": np.arange(3), 5: np.float32(0.5)}
    (said,) = await runner.reset(example, 1)
    assert json.loads(said["content"]) == {"when": "2024-02-29", "all": [0, 1, 2], "5": 0.5}  # type: ignore[index]
    await runner.close()


async def test_a_harness_that_takes_one_call_gets_the_first(
    harness: Callable[..., EpisodeRunner], tmp_path: Path
) -> None:
    runner = harness(
        f"""
        said = chat(user("a"), parallel_tool_calls=False)["message"]
        open({str(tmp_path / "found")!r}, "w").write(json.dumps(said["tool_calls"]))
        chat(user("a"), said, {{"role": "tool", "tool_call_id": "1", "content": "b"}})
        """
    )
    await runner.reset(EXAMPLE, 1)
    calls = tuple(ToolCall(name="f", arguments={"x": i}, id=str(i)) for i in (1, 2))
    step = (await runner.step(turn_of(0, "", calls=calls), key="k")).step
    assert not step.anew and len(step.observation) == 1, "its conversation has grown"
    assert (await runner.step(turn_of(1, "y"), key="k")).step.done
    await runner.close()
    (call,) = json.loads((tmp_path / "found").read_text())
    assert call["id"] == "1" and call["function"]["arguments"] == '{"x": 1}'


async def test_what_a_turn_was_comes_with_it(
    harness: Callable[..., EpisodeRunner], tmp_path: Path
) -> None:
    runner = harness(
        f"""
        found = chat(user("a"), logprobs=True, return_token_ids=True)
        open({str(tmp_path / "found")!r}, "w").write(json.dumps(found))
        """
    )
    await runner.reset(EXAMPLE, 1)
    assert (await runner.step(turn_of(0, "b", finish="length"), key="k")).step.done
    await runner.close()
    found = json.loads((tmp_path / "found").read_text())
    assert found["token_ids"] == [5, 6] and found["finish_reason"] == "length"
    assert [each["logprob"] for each in found["logprobs"]["content"]] == [-0.5, -0.25]


async def test_a_rewritten_conversation_begins_anew(harness: Callable[..., EpisodeRunner]) -> None:
    runner = harness(
        """
        said = chat(user("a"))["message"]
        chat({"role": "system", "content": "In short: " + said["content"]}, user("b"))
        """
    )
    await runner.reset(EXAMPLE, 1)
    step = (await runner.step(turn_of(0, "x"), key="k")).step
    assert step.anew
    assert [message["content"] for message in step.observation] == ["In short: x", "b"]  # type: ignore[index]
    assert (await runner.step(turn_of(1, "y"), key="k")).step.done
    await runner.close()


async def test_a_reward_is_posted(harness: Callable[..., EpisodeRunner]) -> None:
    runner = harness(
        """
        said = chat(user(os.environ["RLBOOST_SEED"]))["message"]["content"]
        reward = {"reward": len(said), "metrics": {"solved": 1}}
        post(os.environ["RLBOOST_SESSION_URL"] + "/reward", reward)
        sys.exit(3)
        """
    )
    said = await runner.reset(EXAMPLE, 17)
    assert said == ({"role": "user", "content": "17"},)
    step = (await runner.step(turn_of(0, "abcd"), key="k")).step
    assert step.done and step.reward == 4.0 and step.metrics == {"solved": 1.0}
    await runner.close()


def judged(example: Any, messages: Any) -> float:
    return len(example["question"]) + len(messages[-1]["content"])


async def test_or_computed(harness: Callable[..., EpisodeRunner]) -> None:
    runner = harness('chat(user("a"))', reward="tests.gateway.test_gateway_environment:judged")
    await runner.reset(EXAMPLE, 1)
    step = (await runner.step(turn_of(0, "four"), key="k")).step
    assert step.reward == len(EXAMPLE["question"]) + 4
    await runner.close()


LOOPS: list[asyncio.AbstractEventLoop] = []


def waits_for_another(example: Any, messages: Any) -> float:
    others = threading.Event()
    LOOPS[-1].call_soon_threadsafe(others.set)
    return float(others.wait(PATIENCE_SECONDS))


async def test_its_computation_holds_no_other_episode_up(
    harness: Callable[..., EpisodeRunner],
) -> None:
    runner = harness(
        'chat(user("a"))', reward="tests.gateway.test_gateway_environment:waits_for_another"
    )
    await runner.reset(EXAMPLE, 1)
    LOOPS.append(asyncio.get_running_loop())
    assert (await runner.step(turn_of(0, "x"), key="k")).step.reward == 1.0
    await runner.close()


async def test_variables_may_be_numbers(harness: Callable[..., EpisodeRunner]) -> None:
    runner = harness('chat(user(os.environ["LEVEL"]))', variables={"LEVEL": 3})
    assert await runner.reset(EXAMPLE, 1) == ({"role": "user", "content": "3"},)
    await runner.close()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("sys.exit('no key')", "code 1: no key"),
        ("pass", "before its first call"),
        ('chat(user("a"))\nraise ValueError("broken")', "ValueError: broken"),
    ],
)
async def test_a_harness_that_fails_is_no_fault_of_the_policys(
    harness: Callable[..., EpisodeRunner], lines: str, why: str
) -> None:
    runner = harness(lines)
    with pytest.raises(EnvironmentFailed, match=why):
        await runner.reset(EXAMPLE, 1)
        await runner.step(turn_of(0, "x"), key="k")
    await runner.close()


async def test_a_harness_ends_with_its_episode(
    harness: Callable[..., EpisodeRunner], tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    runner = harness(
        f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(path)!r}, "w").write(f"{{os.getpid()}} {{child.pid}} {{os.getcwd()}}")
        chat(user("a"))
        """,
        own_folder=True,
    )
    await runner.reset(EXAMPLE, 1)
    own, child, folder = path.read_text().split()
    await runner.close()
    assert not Path(folder).exists()
    assert _ended(int(own))
    while not _ended(int(child)):  # it is killed; nobody waits for a grandchild's end
        await asyncio.sleep(0.01)


async def test_a_session_without_an_episode_is_refused_for_good() -> None:
    """A client would repeat a call that failed with 503 for ever."""
    channels = Channels(Model(name="policy", max_tokens=0, any_name=True, own_sampling=True))
    with pytest.raises(ApiError, match="POST /sessions") as refused:
        await anext(
            channels.turn(
                "gone",
                Ask(turn=0, call=TokenCall(tokens=(1,), sampling=CallSampling()), begins=True),
            )
        )
    assert refused.value.status == 404


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def test_a_client_asks_for_a_session(tmp_path: Path) -> None:
    """It comes from outside with the gateway's own token, and gets an example."""
    port = free_port()
    options = {"port": port, "folder": str(tmp_path / "g")}
    make = maker_of("gateway", options)
    runner = EpisodeRunner(make, ledger=RememberedCalls(), time_limit_seconds=PATIENCE_SECONDS)
    reset = asyncio.create_task(runner.reset(EXAMPLE, 3))
    while not (tmp_path / "g" / "token").exists():
        await asyncio.sleep(0)
    headers = {"Authorization": f"Bearer {(tmp_path / 'g' / 'token').read_text()}"}
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.post(f"{url}/sessions", json={}, headers=headers) as answer:
                    session = await answer.json()
                    if answer.status == 201:
                        break
            except aiohttp.ClientConnectionError:
                pass
        assert session["example"] == EXAMPLE and session["seed"] == 3
        own = {"Authorization": f"Bearer {session['token']}"}
        body = {"token_ids": [1, 2, 3]}
        call = asyncio.create_task(_json(client, f"{url}/inference/v1/generate", body, own))
        np.testing.assert_array_equal(await reset, [1, 2, 3])
        step = asyncio.create_task(runner.step(turn_of(0, "x"), key="k"))
        assert (await call)["choices"][0]["token_ids"] == [5, 6]
        more = {"token_ids": [1, 2, 3, 5, 6, 9]}
        call = asyncio.create_task(_json(client, f"{url}/inference/v1/generate", more, own))
        np.testing.assert_array_equal((await step).step.observation, [9])
        step = asyncio.create_task(runner.step(turn_of(1, "x"), key="k"))
        await call
        reward = {"reward": 0.5}
        await _json(client, f"{url}/sessions/{session['id']}/reward", reward, own)
        assert (await step).step.reward == 0.5
    await runner.close()


async def _json(client: aiohttp.ClientSession, url: str, body: Any, headers: Any) -> Any:
    async with client.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()
