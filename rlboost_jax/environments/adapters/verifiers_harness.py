"""In-process harness for verifiers: the chat loop of an episode.

verifiers finds it by its name like any plug-in (`register`). Its own `null` harness does the same
in a script that uv makes an environment for, which needs a network.
"""

import sys
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import mcp_client
from verifiers.v1.runtimes import ProgramResult

from rlboost_jax.environments.adapters.verifiers_answers import FAILED_CALL
from rlboost_jax.platform import foreign_json

__all__ = ["TurnsHarness"]

ID: Final = "rlboost_turns"
_SHOWN: Final = 2000  # characters of an answer that is none


def register() -> str:
    """Register the harness with verifiers; returns its id."""
    sys.modules.setdefault(ID, sys.modules[__name__])
    return ID


class TurnsHarnessConfig(vf.HarnessConfig):
    """Configuration of the harness, which has no settings of its own."""


class TurnsHarness(vf.Harness[TurnsHarnessConfig]):
    """Harness that asks the policy until a turn calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> ProgramResult:
        """Run one segment, from a prompt or the conversation so far.

        Raises what a tool server does.
        """
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = []
        if system:
            messages.append({"role": "system", "content": system})
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
            )
            tools = [
                (tool, client)
                for name in sorted(mcp_urls)
                for client in [await stack.enter_async_context(mcp_client({"url": mcp_urls[name]}))]
                for tool in (await client.list_tools()).tools
            ]
            clients = {tool.name: client for tool, client in tools}
            body: dict[str, Any] = {"model": ctx.model, "messages": messages}
            if tools:
                body["tools"] = [_described(tool) for tool, _ in tools]
            while True:
                async with http.post(
                    f"{endpoint}/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {secret}"},
                ) as answer:
                    if answer.status != 200:
                        return ProgramResult(1, "", (await answer.text())[:_SHOWN])
                    reply = (await answer.json())["choices"][0]["message"]
                messages.append({k: v for k, v in reply.items() if v is not None})
                if not reply.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in reply["tool_calls"]:
                    content = await _called(clients, call)
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": content}
                    )


def _described(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or ""}
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None) or {}
    return {"type": "function", "function": function | {"parameters": schema}}


async def _called(clients: dict[str, Any], call: dict[str, Any]) -> str:
    name = call["function"]["name"]
    arguments = foreign_json.decode(call["function"]["arguments"], f"a call of {name}", dict)
    if call["id"].startswith(FAILED_CALL):
        return str(arguments["problem"])
    result = await clients[name].call_tool(name, arguments)
    return "\n".join(map(_text, result.content))


def _text(part: Any) -> str:
    kind = getattr(part, "type", type(part).__name__)
    return part.text if kind == "text" else f"(a part of type {kind}, which is no text)"
