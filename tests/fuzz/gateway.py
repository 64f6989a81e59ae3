"""Bodies, headers and paths that no honest client of a gateway sends.

    python -m tests.fuzz --gateway=100000 --seed=1

Valid calls with some of their values, fields or bytes replaced, with a token that is in order, a
session's, or wrong. Whatever comes is answered in OpenAI's form and without a token in it, never by
a 5xx; without a token nothing is made; what was opened stays bounded.
"""

import asyncio
import json
import socket
from collections import Counter
from random import Random
from typing import Any, Final

import aiohttp

from rlboost_jax.gateway.gateway_limits import GatewayLimits
from rlboost_jax.gateway.serving import listening
from rlboost_jax.gateway.sessions import Sessions
from tests.fuzz.mutators import TEXTS
from tests.gateway.fakes import Fake

TOKEN: Final = "the-gateways-own-token"
MAX_SESSIONS: Final = 32
_CALL: Final = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_USER: Final = {"role": "user", "content": "a"}
BODIES: Final[dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
            _USER,
        ],
        "tools": [_TOOL],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x"],
        "stop_token_ids": [1],
        "return_token_ids": True,
        "n": 1,
    },
    "/inference/v1/generate": {
        "model": "fake",
        "token_ids": [1, 2, 3],
        "sampling_params": {"temperature": 1.0, "max_tokens": 5, "stop_token_ids": [2]},
    },
    "/sessions": {"id": "s"},
    "/sessions/s/reward": {"reward": 1.0, "metrics": {"solved": 1}},
}
VALUES: Final = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 1e300, -0.0, 0.5, [], {}, [[]], [{}]),
    *([None], {"a": []}, ["x"] * 20, list(range(40)), {"role": "user"}, "\ud800", *TEXTS),
)
PATHS: Final = (
    *(
        "/v1/models",
        "/",
        "/sessions/s",
        "/sessions/../s",
        "/sessions/%00",
        "/sessions/" + "x" * 999,
    ),
    *("/v1/chat/completions/", "/v1//models", "/sessions/%2e%2e", "/inference/v1/generate?x=1"),
)


def fuzz(bodies: int, seed: int) -> Counter[int]:
    """Returns how often which status was answered. Raises AssertionError."""
    return asyncio.run(_fuzz(bodies, Random(seed)))


async def _fuzz(bodies: int, random: Random) -> Counter[int]:
    backend = Fake()
    sessions = Sessions(backend, GatewayLimits(max_sessions=MAX_SESSIONS, max_turns=3))
    found: Counter[int] = Counter()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        listening(sessions, listener, token=TOKEN),
        aiohttp.ClientSession(base_url=url) as client,
    ):
        for _ in range(bodies):
            if random.random() < 0.02:
                await sessions.close()
            known = backend.asked[-1][0] if backend.asked else ""
            token, right = random.choice(
                [(TOKEN, True), (TOKEN, True), (f"{known}.guess", False), ("", False)]
            )
            before = len(backend.asked), len(sessions)
            status, text = await _send(client, random, token)
            found[status] += 1
            assert status < 500, f"{status}: {text[:200]}"
            assert TOKEN not in text
            assert len(sessions) <= MAX_SESSIONS
            assert all(session.queued == 0 for session in sessions._open.values())
            if not right:
                assert status in (400, 401), status
                assert before == (len(backend.asked), len(sessions)), "made without a token"
            if status >= 400:
                assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
            backend.asked, backend.over = backend.asked[-1:], []
    return found


async def _send(client: aiohttp.ClientSession, random: Random, token: str) -> tuple[int, str]:
    path = random.choice(list(BODIES))
    data = json.dumps(_mutant(random, BODIES[path])).encode()
    if random.random() < 0.2:
        place = random.randrange(len(data))
        data = data[:place] + random.randbytes(random.choice((0, 1, 4))) + data[place + 1 :]
    if random.random() < 0.02:
        data = random.choice((b"[" * 10_000, b'{"a":' * 5_000, b"", b"null", b"1" * 5_000))
    method = "POST"
    if random.random() < 0.1:
        path, method = random.choice(PATHS), random.choice(("GET", "DELETE", "PUT", "POST"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if random.random() < 0.5:
        headers["X-Session-ID"] = random.choice(("s", "t", "x" * 300, "../..", "é", "a b"))
    if random.random() < 0.1:
        headers["Idempotency-Key"] = random.choice(("k", "y" * 300))
    if random.random() < 0.05:
        headers["Content-Encoding"] = random.choice(("gzip", "deflate", "identity", "nonsense"))
    try:
        async with client.request(method, path, data=data, headers=headers) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientError as error:
        raise AssertionError(
            f"hung up on {method} {path} {headers} {data[:200]!r}: {error!r}"
        ) from error


def _mutant(random: Random, value: Any) -> Any:
    """A body with some of its parts gone, doubled, or of another kind."""
    if random.random() < 0.04:
        return random.choice(VALUES)
    if isinstance(value, dict):
        made = {k: _mutant(random, v) for k, v in value.items() if random.random() > 0.03}
        if random.random() < 0.05:
            made[random.choice(("n", "seed", "logit_bias", "functions", "x"))] = random.choice(
                VALUES
            )
        return made
    if isinstance(value, list):
        parts = [_mutant(random, each) for each in value if random.random() > 0.03]
        return parts * 2 if random.random() < 0.03 else parts
    return value
