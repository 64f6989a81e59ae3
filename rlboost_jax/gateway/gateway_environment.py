"""The environment `gateway`: an external harness that talks to it as if to OpenAI.

    config.environment.name = "gateway"
    config.environment.options = {"command": "python agent.py"}

`reset` starts the harness and waits for its first call, whose messages are the prompt. A turn of
the policy answers the call, and the next call is the next observation: what was added where the
conversation only grew, and another sequence where it was rewritten. The episode is over when the
harness ends, or posts a reward.

A group's prompt is what the harness asks for when it is run once for the example. Each sample runs
it again and must make the same first call; what it does is a function of its example, its seed and
the policy's turns, as of any environment (see `environments/protocol.py`).
"""

import asyncio
import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlboost_jax.environments.protocol import (
    Message,
    Observation,
    Step,
    Tool,
    ToolCall,
    Turn,
)
from rlboost_jax.gateway.client_calls import ChatCall, TokenCall
from rlboost_jax.gateway.gateway_session import Ask, Called, SampledTurn
from rlboost_jax.gateway.harness import Harness
from rlboost_jax.gateway.harness_channel import HarnessChannel, Over
from rlboost_jax.gateway.listener import HarnessListener, listener_of
from rlboost_jax.gateway.served import asked_for, message_of
from rlboost_jax.platform.outside_code import imported
from rlboost_jax.settings.page_config import host_mistakes

Reward = Callable[..., float]


class HarnessFailed(RuntimeError):
    """The harness ended with another code than 0, or before its first call."""


class Gateway:
    """An environment. Either `command` or `port` says where its harness is."""

    def __init__(
        self,
        command: str | Sequence[str] = "",
        variables: Mapping[str, str] | None = None,
        reward: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        folder: str = "",
        model: str = "policy",
        own_folder: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        """
        Args:
            command: started for each episode; without one, clients ask for sessions.
            variables: more of its environment.
            reward: "package.module:function" of (example, messages), where none is posted.
            host, port: to listen on for such clients. Programs of ours use a port that is free.
            folder: for the gateway's token and certificate, where clients come from outside.
            model: what `/v1/models` calls the policy; any name is taken for it.
            allowed_hosts: names by which such clients may ask, beside those of this host.
            own_folder: the command runs in a folder of its own, else where the trainer does.
        """
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._command and not (port and folder):
            raise ValueError(
                "environment.options: name the harness (command), or where clients come to "
                "(port and folder)"
            )
        self._variables = {name: str(value) for name, value in (variables or {}).items()}
        self._reward: Reward | None = imported(reward) if reward else None
        self._host, self._port, self._folder = host, port, folder
        self._model, self._inside = model, own_folder
        self._hosts = tuple(allowed_hosts)
        for mistake in host_mistakes(self._hosts, "environment.options.allowed_hosts"):
            raise ValueError(mistake)
        self._listener: HarnessListener
        self._channel: HarnessChannel
        self._harness: Harness | None = None
        self._session = ""
        self._example: Mapping[str, Any] = {}
        self._messages: tuple[Message, ...] = ()
        self._calls: tuple[ToolCall, ...] = ()
        self._ask: Ask
        self.tools: Mapping[str, Tool] = {}

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._example = example
        self._channel = HarnessChannel(more={"example": dict(example), "seed": seed})
        self._listener = await listener_of(
            self._host,
            self._port,
            self._folder,
            model=self._model,
            outside=not self._command,
            hosts=self._hosts,
        )
        if self._command:
            session = self._listener.sessions.open()
            self._session = session.id
            self._listener.channels.bind(session.id, self._channel)
            self._harness = await Harness.start(
                self._command,
                base_url=f"{self._listener.url}/v1",
                token=session.token,
                session_url=f"{self._listener.url}/sessions/{session.id}",
                model=self._model,
                example=example,
                seed=seed,
                variables=self._variables,
                inside=self._inside,
            )
        else:
            self._session = await self._listener.channels.wait_for_client(self._channel)
        found = await self._next()
        if isinstance(found, Over):
            raise HarnessFailed(f"the harness ended before its first call: {found.reason}")
        return self._observed(found)

    def calls(self, turn: Turn) -> tuple[ToolCall, ...]:
        """Return (): the harness carries out tool calls itself."""
        self._calls = turn.calls
        return ()

    async def step(self, turn: Turn) -> Step:
        sampled = _sampled_turn(turn, self._calls, self._ask)
        if sampled.message is not None:
            self._messages = (*self._messages, sampled.message)
        self._channel.answer(sampled)
        found = await self._next()
        if isinstance(found, Over):
            return await self._over(found)
        return Step(observation=self._observed(found), anew=found.begins)

    async def close(self) -> None:
        if self._harness is not None:
            await self._harness.close()
        if self._session:
            await self._listener.forget(self._session)

    async def _next(self) -> Ask | Over:
        """Wait for the next call, or for the end of the episode."""
        asked = asyncio.ensure_future(self._channel.next())
        ended = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            # What was posted before the harness ended comes first.
            return await asked if asked.done() or self._channel.waits else ended.result()
        finally:
            for task in (asked, ended):
                task.cancel()
                task.add_done_callback(_ignore)

    async def _ended(self) -> Over:
        """Wait for the end of the program; a client's end is reported by its session."""
        if self._harness is None:
            await asyncio.Event().wait()
        assert self._harness is not None
        code = await self._harness.ended()
        if code:
            said = f": {self._harness.said}" if self._harness.said else ""
            raise HarnessFailed(f"the harness ended with code {code}{said}")
        return Over(reward=None, metrics={}, reason="the harness ended")

    def _observed(self, ask: Ask) -> Observation:
        self._ask = ask
        if ask.begins:
            self.tools = {tool.name: tool for tool in _described(ask)}
        if isinstance(ask.call, TokenCall):
            self._messages = ()
            return np.array(ask.given, np.int32)
        self._messages = ask.call.messages
        return ask.new

    async def _over(self, over: Over) -> Step:
        reward = over.reward
        if reward is None and self._reward is not None:
            asked = dict(self._example), list(self._messages)
            found = await asyncio.to_thread(self._reward, *asked)  # others go on meanwhile
            reward = float(await found if inspect.isawaitable(found) else found)
        return Step(reward=reward or 0.0, done=True, metrics=dict(over.metrics))


def _sampled_turn(turn: Turn, calls: Sequence[ToolCall], ask: Ask) -> SampledTurn:
    called = tuple(
        Called(id=call.id or f"call_{turn.index}_{place}", name=call.name, arguments=_text(call))
        for place, call in enumerate(calls)
        if not call.problem
    )
    called = asked_for(ask.call, called)
    chat = isinstance(ask.call, ChatCall)
    return SampledTurn(
        tokens=turn.tokens,
        logprobs=turn.logprobs,
        finish=turn.finish,
        text=turn.text,
        thinking=turn.thinking,
        calls=called,
        message=message_of(turn.text, turn.thinking, called) if chat else None,
    )


def _ignore(task: "asyncio.Future[Any]") -> None:
    """Retrieve the result of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


def _text(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments))


def _described(ask: Ask) -> list[Tool]:
    """Tools of the harness, for prompts."""
    if not isinstance(ask.call, ChatCall):
        return []
    functions = [tool["function"] for tool in ask.call.tools]
    return [
        Tool(
            name=function["name"],
            description=function.get("description", ""),
            parameters=function["parameters"],
            run=_not_ours,
            idempotent=True,
        )
        for function in functions
    ]


def _not_ours(arguments: Mapping[str, Any], key: str) -> str:
    raise RuntimeError("the harness carries its calls out itself")
