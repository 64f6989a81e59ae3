"""OpenEnv: environments that are served by a server of their own, through openenv-core's client.

    environment.name = "openenv"
    environment.options = {"base_url": "http://127.0.0.1:8000", "action": "message"}

An episode is a session of the server. Example {"index": i} is `reset(seed=i)`; what else a row has
goes to `reset` as well. A session that is lost is opened again and gets the same turns.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.environments.adapters.packages import imported, number_of
from rlboost_jax.environments.protocol import Message, Observation, Step, Tool, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable

EXTRA: Final = "openenv"
JSON_ACTION: Final = "json"
LONG_SECONDS: Final = 86_400.0  # environment.time_limit_seconds ends a call


class OpenEnv:
    """One session of a server."""

    def __init__(
        self,
        base_url: str,
        action: str = "message",
        observation: str = "",
        system_prompt: str = "",
        with_tools: bool = False,
    ) -> None:
        """
        Args:
            base_url: of the server, http or ws.
            action: field of an action that a turn's text goes into; "json": the text is the whole
                action, an object. The policy reads of a text that is none.
            observation: field that the policy reads; "": the only text there is, or all as JSON.
            system_prompt: before the first observation; "": none.
            with_tools: the server's MCP tools are the policy's. They are part of the session: one
                that is opened again has them called again.
        """
        client = imported("openenv.core", extra=EXTRA).GenericEnvClient
        self._client = client(base_url=base_url, message_timeout_s=LONG_SECONDS)
        self._action, self._field = action, observation
        self._system, self._with_tools = system_prompt, with_tools
        self.tools: dict[str, Tool] = {}

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Begin the session. Raises ConnectionError, or RuntimeError of the server."""
        number = number_of(example, seed) % 2**31
        row = {name: value for name, value in example.items() if name != "index"}
        await self._client.connect()
        result = await self._client.reset(**{"seed": number} | row)
        if self._with_tools:
            listed = await self._client.step({"type": "list_tools"})
            self.tools = {t["name"]: _tool(t) for t in listed.observation.get("tools", ())}
        said: Message = {"role": "user", "content": self._text(result.observation)}
        return ({"role": "system", "content": self._system}, said) if self._system else (said,)

    async def step(self, turn: Turn) -> Step:
        """Send a turn, or its calls one after the other, and return the server's answer."""
        if self._with_tools and turn.calls:
            return await self._called(turn)
        action: Any = {self._action: turn.text}
        if self._action == JSON_ACTION:
            try:
                action = foreign_json.decode(turn.text, "the turn", dict)
            except Unreadable as error:
                return Step(observation=f"No action, which is an object in JSON: {error}")
        result = await self._client.step(action)
        observation = () if result.done else self._text(result.observation)
        return _step(observation, float(result.reward or 0.0), bool(result.done))

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    async def _called(self, turn: Turn) -> Step:
        said: list[Message] = []
        reward, done = 0.0, False
        for call, result in zip(turn.calls, turn.results, strict=True):
            content = result.content
            if not result.failed and not done:
                answer = await self._client.step(
                    {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
                )
                reward += float(answer.reward or 0.0)
                done = bool(answer.done)
                content = _tool_text(answer.observation)
            said.append(
                {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}
            )
        return _step(() if done else tuple(said), reward, done)

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self._field:
            value = observation.get(self._field, "")
            return value if isinstance(value, str) else json.dumps(value)
        shown = {k: v for k, v in observation.items() if k not in ("done", "reward", "metadata")}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return texts[0] if len(shown) == len(texts) == 1 else json.dumps(shown, sort_keys=True)


def _step(observation: Observation, reward: float, done: bool) -> Step:
    solved = {"solved": float(reward >= 1)} if done else {}
    return Step(observation=observation, reward=reward, done=done, metrics=solved)


def _tool(described: Mapping[str, Any]) -> Tool:
    """Tool for the prompt; the call is made by `step`, in the order of the turn."""
    return Tool(
        name=described["name"],
        description=described.get("description") or "",
        parameters=described.get("input_schema") or {"type": "object", "properties": {}},
        run=lambda arguments, key: "",
        idempotent=True,
    )


def _tool_text(observation: Mapping[str, Any]) -> str:
    if error := observation.get("error"):
        return f"error: {error.get('message', error) if isinstance(error, dict) else error}"
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(result.get("data"), str):
        return str(result["data"])
    return result if isinstance(result, str) else json.dumps(result, sort_keys=True)
