"""Model endpoint for verifiers: a request waits until the policy's turn is there.

verifiers sends a request of OpenAI's chat completions for each turn. A small server on this host's
own address takes it, and answers when the policy has spoken.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from rlboost_jax.environments.protocol import Message, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.settings.foreign_keys import report_unknown
from rlboost_jax.trust.bytes_in_flight import BytesInFlight, read_body
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    NEWCOMER_SECONDS,
    RUNNER_OPTIONS,
    Gate,
)
from rlboost_jax.trust.listener_limits import OWNER, ListenerLimits

MODEL: Final = "policy"
FAILED_CALL: Final = "rlboost-failed-"  # begins the id of a call that is not made
_MOST_BYTES: Final = 64 * 2**20
# What opens it is the secret in its path, which verifiers' own client alone has.
LIMITS: Final = ListenerLimits(
    name="verifiers adapter",
    connections=16,
    credential_connections=16,
    newcomers=16,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=_MOST_BYTES,
    credential_bytes=2 * _MOST_BYTES,
    total_bytes=2 * _MOST_BYTES,
    held_per_byte=30,  # an empty list is two bytes of JSON
)
_READ: Final = ("messages", "tools", "model")  # of a request
_OF_MESSAGE: Final = ("role", "content", "tool_call_id", "tool_calls", "reasoning_content")


@dataclass(frozen=True, kw_only=True)
class TurnWanted:
    """Request for a turn: the new messages, and the tools."""

    new: list[Message]
    tools: list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class VerifiersOutcome:
    """Rewards and metrics of the policy's part of an episode."""

    reward: float
    metrics: Mapping[str, float]


class NotText(ValueError):
    """A message has a part that is no text."""


class VerifiersAnswers:
    """Exchange of one episode between verifiers' loop, which requests turns, and ours."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        Args:
            loop: verifiers' own.
        """
        self._loop = loop
        self._asked: asyncio.Queue[TurnWanted | VerifiersOutcome | Exception] = asyncio.Queue()
        self._turn: asyncio.Future[Turn] | None = None
        self._episode: asyncio.Task[None] | None = None
        self._before: list[Any] = []
        self._ids: dict[str, str] = {}  # of calls, for verifiers: what the policy calls them
        self._role = ""

    async def begin(self, env: Any, task: Any, role: str) -> TurnWanted | VerifiersOutcome:
        """Have verifiers run a task until it requests a turn, or ends."""
        self._role = role

        async def first() -> TurnWanted | VerifiersOutcome:
            self._episode = asyncio.create_task(self._run(env, task))
            return await self._next()

        return await self._there(first())

    async def answer(self, turn: Turn) -> TurnWanted | VerifiersOutcome:
        """Give the requested turn. Raises RuntimeError if the episode failed."""

        async def given() -> TurnWanted | VerifiersOutcome:
            assert self._turn is not None
            self._turn.set_result(turn)
            return await self._next()

        return await self._there(given())

    async def close(self) -> None:
        """End the episode wherever it is."""

        async def ended() -> None:
            if self._turn is not None:
                self._turn.cancel()  # else the server waits for its answer
            if self._episode is not None:
                self._episode.cancel()
                await asyncio.gather(self._episode, return_exceptions=True)

        await self._there(ended())

    async def _there(self, work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _next(self) -> TurnWanted | VerifiersOutcome:
        said = await self._asked.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def _run(self, env: Any, task: Any) -> None:
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        secret = secrets.token_urlsafe(16)
        gate, flight = Gate(LIMITS), BytesInFlight(LIMITS)

        async def completion(request: web.Request) -> web.Response:
            gate.admit(request.protocol)
            with flight.held(OWNER) as held:
                text = bytes(await read_body(request, held, LIMITS.message_bytes))
                body = foreign_json.decode(text, "a request of verifiers", dict)
                return await self._completion(body)

        app = web.Application()
        app.router.add_post(f"/{secret}/chat/completions", completion)
        runner = web.AppRunner(app, shutdown_timeout=1.0, **RUNNER_OPTIONS)
        listening: asyncio.Server | None = None
        try:
            await runner.setup()
            assert runner.server is not None
            listening = await gate.listen(runner.server, "127.0.0.1", 0)
            port = listening.sockets[0].getsockname()[1]
            client = EvalClientConfig(
                base_url=f"http://127.0.0.1:{port}/{secret}", api_key_var="RLBOOST_NO_KEY"
            )
            episode = await env.run_episode(task, ModelContext(model=MODEL, client=client))
            self._asked.put_nowait(self._outcome(episode))
        except Exception as error:
            self._asked.put_nowait(error)
        finally:
            if listening is not None:
                listening.close()
            await runner.cleanup()

    async def _completion(self, body: Any) -> web.Response:
        report_unknown(body, _READ, "requests of verifiers (a run samples by its own settings)")
        messages = body["messages"]
        if messages[: len(self._before)] != self._before:
            return self._refused(
                "verifiers begins another conversation in the middle of the episode (several runs "
                "of the policy, or a history that is rewritten); train it through the gateway"
            )
        try:
            new = [_message(m, self._ids) for m in messages[len(self._before) :]]
        except NotText as error:
            return self._refused(str(error))
        self._turn = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(
            TurnWanted(
                new=new,
                tools=[tool["function"] for tool in body.get("tools", ())],
            )
        )
        turn = await self._turn
        said = _assistant(turn)
        for call, wire in zip(turn.calls, said.get("tool_calls", ()), strict=True):
            self._ids[wire["id"]] = call.id
        self._before = [*messages, {k: v for k, v in said.items() if v is not None}]
        return web.json_response(
            {
                "id": f"turn-{turn.index}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": MODEL,
                "choices": [
                    {
                        "index": 0,
                        "message": said,
                        "finish_reason": "tool_calls" if turn.calls else turn.finish,
                    }
                ],
            }
        )

    def _refused(self, why: str) -> web.Response:
        self._asked.put_nowait(RuntimeError(why))
        return web.json_response({"error": {"message": why}}, status=400)

    def _outcome(self, episode: Any) -> VerifiersOutcome | RuntimeError:
        mine = [t for t in episode.traces if len(episode.traces) == 1 or t.agent.name == self._role]
        errors = [*episode.errors, *(error for trace in mine for error in trace.errors)]
        if not episode.ok or errors or not mine:
            said = "; ".join(f"{error.type}: {error.message}" for error in errors)
            return RuntimeError(f"verifiers: {said or 'the episode is not whole'}")
        metrics = {
            name: float(value)
            for trace in mine
            for name, value in trace.metrics.items()
            if value is not None
        }
        return VerifiersOutcome(reward=float(sum(trace.reward for trace in mine)), metrics=metrics)


def _message(wire: Mapping[str, Any], ids: Mapping[str, str]) -> Message:
    """Decode a message that is not the policy's: text parts only, joined to one text.

    Raises:
        NotText
    """
    report_unknown(wire, _OF_MESSAGE, "messages of verifiers")
    content = wire.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(map(_part, content))
    message: Message = {"role": wire["role"], "content": content}
    if wire["role"] == "tool":
        message["tool_call_id"] = ids.get(wire["tool_call_id"], "")
    for name in ("tool_calls", "reasoning_content"):
        if wire["role"] == "assistant" and wire.get(name):
            message[name] = wire[name]  # type: ignore[literal-required]
    return message


def _part(part: Any) -> str:
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise NotText(
            f"a message of verifiers has a part of type {kind!r}; the policy reads text alone"
        )
    report_unknown(part, ("type", "text"), "parts of verifiers' messages")
    return str(part.get("text") or "")


def _assistant(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    calls = []
    for place, (call, result) in enumerate(zip(turn.calls, turn.results, strict=True)):
        name, arguments = call.name, dict(call.arguments)
        named = call.id or f"call-{turn.index}-{place}"
        if result.failed:  # it is not made: the policy reads why
            named, arguments = f"{FAILED_CALL}{turn.index}-{place}", {"problem": result.content}
        calls.append(
            {
                "id": named,
                "type": "function",
                "function": {"name": name or "none", "arguments": json.dumps(arguments)},
            }
        )
    if calls:
        message["tool_calls"] = calls
    return message
