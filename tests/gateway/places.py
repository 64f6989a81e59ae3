"""A tiny checkpoint of Hugging Face's format that can be spoken with, and a gateway that serves it.

Its weights are random: turns are nonsense, and hardly any decodes to text that encodes to the same
tokens again. Tokens have to survive that.
"""

import asyncio
import contextlib
import importlib.util
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.gateway import serving
from rlboost_jax.gateway.backend import Backend
from rlboost_jax.gateway.gateway_limits import GatewayLimits, listener_limits
from rlboost_jax.gateway.sessions import Sessions
from rlboost_jax.trust.listener_limits import ListenerLimits
from tests.patience import PATIENCE_SECONDS

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "make_hf_tiny.py"
TOKEN = "the-gateway's"
MAX_TOKENS = 640
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}\n\n{% endif %}Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == "assistant" %}<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SPOKEN = "{{ message.content }}\n{%- for call"
# Not prefix-stable: of a turn of more letters it keeps 12 once another message follows.
FORGETFUL = TEMPLATE.replace(
    SPOKEN, SPOKEN.replace("content", "content if loop.last else message.content[:12]")
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A gateway that listens."""

    url: str  # without /v1
    backend: Any
    sessions: Sessions
    loop: asyncio.AbstractEventLoop

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}


def make_checkpoint(folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers and torch")
    pytest.importorskip("torch", reason="needs torch to make a checkpoint")
    spec = importlib.util.spec_from_file_location("make_hf_tiny", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main([f"--to={folder}", "--updates=0"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "checkpoint")
    tokenizer.add_tokens(list(MARKS))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "checkpoint")


def _unhurried(limits: GatewayLimits) -> ListenerLimits:
    return replace(listener_limits(limits), newcomer_seconds=PATIENCE_SECONDS)


@contextlib.contextmanager
def running(backend: Backend, **limits: Any) -> Iterator[Place]:
    """A gateway in a thread of its own, at a free port of this host."""
    started: list[tuple[Place, asyncio.Event]] = []
    ready = threading.Event()

    async def serve() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        listener.setblocking(False)
        sessions = Sessions(backend, GatewayLimits(**limits))
        async with serving.listening(sessions, listener, token=TOKEN):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            place = Place(url=url, backend=backend, sessions=sessions, loop=loop)
            started.append((place, ended))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "listener_limits", _unhurried)
        thread.start()
        assert ready.wait(PATIENCE_SECONDS)
    place, ended = started[0]
    try:
        yield place
    finally:
        place.loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE_SECONDS)
