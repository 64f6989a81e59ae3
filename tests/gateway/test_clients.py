"""Clients that know nothing of this project: `openai`, verifiers' TrainClient, a program.

    pip install openai verifiers==0.4.0        # in an environment with the project's own packages

Each drives ten turns, and what it gets is an engine's own, bit for bit.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.oracle import Turn, assert_engine_samples, engine_of
from tests.gateway.places import MAX_TOKENS, TOKEN, Place, running
from tests.patience import PATIENCE_SECONDS

MOST = 24
TURNS = 10
TOOL = {
    "type": "function",
    "function": {"name": "length", "parameters": {"type": "object", "properties": {}}},
}


async def session_of(place: Place, name: str) -> str:
    """Open a session; returns its token."""
    async with (
        aiohttp.ClientSession(headers=place.headers) as client,
        client.post(f"{place.url}/sessions", json={"id": name}) as answer,
    ):
        assert answer.status == 201
        token: str = (await answer.json())["token"]
        return token


async def test_openai_drives_ten_turns(gateway: Place, checkpoint: Path) -> None:
    openai = pytest.importorskip("openai", reason="install openai to test its client")
    token = await session_of(gateway, "openai")
    turns: list[Turn] = []
    messages: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        for turn in range(TURNS):
            answer = await client.chat.completions.create(
                model="tiny",
                messages=messages,
                max_completion_tokens=MOST,
                logprobs=True,
                top_logprobs=1,
                extra_body={"return_token_ids": True},
            )
            choice = answer.choices[0]
            assert choice.logprobs is not None and choice.logprobs.content is not None
            logprobs = [entry.logprob for entry in choice.logprobs.content]
            turns.append((answer.prompt_token_ids, choice.token_ids, logprobs))
            assert answer.usage.completion_tokens == len(choice.token_ids)
            messages += [choice.message, {"role": "user", "content": f"And {turn}?"}]
    assert_engine_samples(engine_of(checkpoint, MAX_TOKENS), "openai", turns, most=MOST)


async def test_openai_streams_with_tools(gateway: Place) -> None:
    openai = pytest.importorskip("openai", reason="install openai to test its client")
    token = await session_of(gateway, "openai-stream")
    messages: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token) as client:
        options = {"model": "tiny", "messages": messages, "tools": [TOOL], "max_tokens": MOST}
        text, reasons = "", []
        async for chunk in await client.chat.completions.create(**options, stream=True):
            text += chunk.choices[0].delta.content or ""
            reasons += [chunk.choices[0].finish_reason]
        whole = (await client.chat.completions.create(**options)).choices[0]
    assert (text, reasons[-1]) == (whole.message.content, whole.finish_reason)


async def test_openais_errors_are_its_own(gateway: Place) -> None:
    openai = pytest.importorskip("openai", reason="install openai to test its client")
    messages: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
    url = f"{gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with openai.AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="tiny"):
            await client.chat.completions.create(model="gpt-4o", messages=messages)
        with pytest.raises(openai.BadRequestError, match="n is not supported"):
            await client.chat.completions.create(model="tiny", messages=messages, n=2)


async def test_verifiers_drives_ten_turns(
    gateway: Place, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client and trace, with the renderer that it has for Qwen3."""
    pytest.importorskip("verifiers", reason="install verifiers==0.4.0 to test its TrainClient")
    from renderers import Qwen3RendererConfig
    from verifiers.v1 import graph
    from verifiers.v1.clients.train import TrainClient
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.dialects import ChatDialect
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import Trace, TraceTask
    from verifiers.v1.types import SamplingConfig, UserMessage

    monkeypatch.setenv("GATEWAY_TOKEN", TOKEN)
    client = TrainClient(
        TrainClientConfig(
            base_url=f"{gateway.url}/v1",
            api_key_var="GATEWAY_TOKEN",
            renderer=Qwen3RendererConfig(thinking_retention="all"),
            renderer_model_name=str(checkpoint),
        )
    )
    trace: Any = Trace.model_construct(task=TraceTask(type="task", data=TaskData()))
    sampling = SamplingConfig(temperature=1.0, max_tokens=MOST)
    messages: list[Any] = [UserMessage(content="What is 3 + 4?")]
    turns: list[Turn] = []
    for turn in range(TURNS):
        pending = graph.prepare_turn(trace, messages, [])
        response = await client.get_response(
            ChatDialect(), {"model": "tiny"}, sampling, session_id="verifiers", turn=pending
        )
        pending.commit(response)
        tokens = response.tokens
        assert tokens is not None
        turns.append((tokens.prompt_ids, tokens.completion_ids, tokens.completion_logprobs))
        messages = [*messages, response.message, UserMessage(content=f"And {turn}?")]
    await client.close()
    assert gateway.sessions.find("verifiers").state.turns == TURNS
    engine = engine_of(checkpoint, MAX_TOKENS)
    assert_engine_samples(engine, "verifiers", turns, most=MOST, stops=sorted({0, 2}))


async def test_a_program_drives_ten_turns(served: Any) -> None:
    """It knows OPENAI_BASE_URL and OPENAI_API_KEY only."""
    with running(served) as place:
        token = await session_of(place, "program")
        environment = {
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": f"{place.url}/v1",
            "OPENAI_API_KEY": token,
        }
        agent = Path(__file__).with_name("agent.py")
        command = [sys.executable, str(agent), "--turns=10", "What is 3 + 4?"]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"turns": 10}
        assert place.sessions.find("program").state.turns == 10
        context = place.backend._contexts["program"]
        assert context.number == 0 and len(context.transcript.runs) == 19
