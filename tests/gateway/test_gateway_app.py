"""HTTP in and out, with a backend of scripted answers."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.client_calls import chat_call
from rlboost_jax.gateway.gateway_app import make_app
from rlboost_jax.gateway.gateway_limits import MAX_BODY_BYTES, MAX_QUEUED, GatewayLimits
from rlboost_jax.gateway.gateway_session import Called
from rlboost_jax.gateway.sessions import Sessions
from tests.gateway.fakes import Fake

TOKEN = "own"
USER = {"role": "user", "content": "a"}
CALLS = (Called(id="call_0", name="add", arguments='{"x": 1}'),)


class Client:
    def __init__(self, client: TestClient, backend: Fake, sessions: Sessions) -> None:
        self._client, self.backend, self.sessions = client, backend, sessions

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        found = {"Authorization": f"Bearer {token}", **headers}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._client.request(method, path, data=data, headers=found) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text

    async def chat(self, body: Any = None, **more: Any) -> tuple[int, Any]:
        value = {"messages": [USER]} if body is None else body
        return await self.ask("POST", "/v1/chat/completions", value, **more)

    async def open(self, **body: Any) -> Any:
        status, said = await self.ask("POST", "/sessions", body)
        assert status == 201
        return said


def with_gateway(story: Any, **limits: Any) -> None:
    async def tell() -> None:
        backend = Fake()
        sessions = Sessions(backend, GatewayLimits(**limits))
        async with TestClient(TestServer(make_app(sessions, token=TOKEN))) as client:
            await story(Client(client, backend, sessions))
            await sessions.close()

    asyncio.run(tell())


def test_other_names_lead_nowhere() -> None:
    """Another site's name may be made to lead to this host's address, with any port."""

    async def story(client: Client) -> None:
        for host, status in (
            ("localhost:8000", 200),
            ("127.0.0.1", 200),
            ("[::1]:8000", 200),
            ("elsewhere.example", 421),
            ("elsewhere.example:8000", 421),
            ("localhost.elsewhere.example", 421),
        ):
            found, said = await client.ask("GET", "/v1/models", Host=host)
            assert found == status
            assert status == 200 or "add it to allowed_hosts" in said["error"]["message"]

    with_gateway(story)


def test_a_turn() -> None:
    async def story(client: Client) -> None:
        status, said = await client.chat({"messages": [USER], "logprobs": True, "top_logprobs": 1})
        choice = said["choices"][0]
        assert status == 200 and choice["message"]["content"] == "one two"
        first = choice["logprobs"]["content"][0]
        assert (first["token"], first["logprob"]) == ("<1>", -0.5)
        assert [each["logprob"] for each in first["top_logprobs"]] == [-0.5]  # the sampled one
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        assert said["usage"] == usage and choice["finish_reason"] == "stop"
        assert len(client.sessions) == 0  # it was a session by itself

    with_gateway(story)


def test_bytes_of_tokens_are_their_own() -> None:
    """A token of half a character has its own bytes, not U+FFFD's; unknown ones have none."""

    async def story(client: Client) -> None:
        own = dict(zip((1, 2), ("ä".encode()[:1], "ä".encode()[1:]), strict=True))
        client.backend.token_bytes = own.get  # type: ignore[method-assign]
        body = {"messages": [USER], "logprobs": True, "top_logprobs": 1}
        _, said = await client.chat(body)
        entries = said["choices"][0]["logprobs"]["content"]
        assert [each["bytes"] for each in entries] == [[0xC3], [0xA4]]
        assert [each["top_logprobs"][0]["bytes"] for each in entries] == [[0xC3], [0xA4]]
        assert bytes(byte for each in entries for byte in each["bytes"]).decode() == "ä"
        _, said = await client.chat({**body, "return_tokens_as_token_ids": True, "seed": 1})
        assert said["choices"][0]["logprobs"]["content"][0]["bytes"] is None
        del own[1]
        _, said = await client.chat({**body, "seed": 2})
        first = said["choices"][0]["logprobs"]["content"][0]
        assert (first["token"], first["bytes"]) == ("<1>", None)

    with_gateway(story)


def test_fields_that_nobody_knows_are_listed() -> None:
    async def story(client: Client) -> None:
        assert (await client.open(id="mine", odd=1))["ignored"] == ["odd"]
        assert "ignored" not in await client.open(id="other", odd=None)
        _, said = await client.chat({"messages": [{**USER, "odd": 1}], "odd": 1})
        assert said["rlboost"]["ignored"] == ["odd", "messages.odd"]
        reward = {"reward": 1, "metrics": {}, "score": 2}
        _, said = await client.ask("POST", "/sessions/mine/reward", reward)
        assert said == {"id": "mine", "reward": 1, "ignored": ["score"]}

    with_gateway(story)


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer", "bEARER", "Bearer  "])
def test_a_scheme_is_read_in_any_case(scheme: str) -> None:
    async def story(client: Client) -> None:
        token = (await client.open())["token"]
        for each in (TOKEN, token):
            assert (await client.chat(Authorization=f"{scheme} {each}"))[0] == 200
        assert (await client.chat(Authorization=f"Basic {TOKEN}"))[0] == 401

    with_gateway(story)


def test_tool_calls_whole_and_in_chunks() -> None:
    async def story(client: Client) -> None:
        client.backend.calls = CALLS
        _, said = await client.chat()
        (call,) = said["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"x": 1}'}
        assert said["choices"][0]["finish_reason"] == "tool_calls"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        _, text = await client.chat({"messages": [USER], **options})
        *events, done = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
        assert done == "[DONE]"
        chunks = [json.loads(each) for each in events]
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 5
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
        assert parts[0]["id"] == "call_0" and parts[0]["function"]["name"] == "add"
        assert "".join(part["function"]["arguments"] for part in parts) == '{"x": 1}'
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"

    with_gateway(story)


def test_clients_that_ask_for_other_things_are_told_what_there_is() -> None:
    async def story(client: Client) -> None:
        for path in ("/v1/responses", "/v1/messages", "/v1/completions", "/chat/completions"):
            status, said = await client.ask("POST", path, {})
            assert status == 404 and "/v1/chat/completions" in said["error"]["message"]
        assert (await client.ask("GET", "/v1/models/fake"))[1]["id"] == "fake"
        assert (await client.ask("GET", "/v1/models/other/name"))[0] == 404
        for encoding, status in (("Identity", 200), ("", 200), ("gzip", 415)):
            assert (await client.chat(**{"Content-Encoding": encoding}))[0] == status

    with_gateway(story)


@pytest.mark.parametrize("token", ["", "wrong", "ownn", "a.b", "\xff"])
def test_without_a_token_nothing_is_said(token: str) -> None:
    async def story(client: Client) -> None:
        session = await client.open(id="mine")
        assert session["token"].startswith("mine.")
        for path in ("/v1/models", "/sessions/mine", "/nothing"):
            status, said = await client.ask("GET", path, token=token)
            assert status == 401 and said["error"]["code"] == "invalid_api_key"
        for near in (session["token"][:-1], f"{session['token']}x", "mine.", "mine"):
            assert (await client.chat(token=near))[0] == 401

    with_gateway(story)


def test_a_sessions_token_opens_that_session() -> None:
    async def story(client: Client) -> None:
        one, two = await client.open(), await client.open()
        assert one["example"] == {"question": "?"}
        await client.chat(token=one["token"], **{"X-Session-ID": two["id"]})
        assert [session for session, _ in client.backend.asked] == [one["id"]]
        refused = [
            await client.ask("GET", f"/sessions/{two['id']}", token=one["token"]),
            await client.ask("DELETE", f"/sessions/{two['id']}", token=one["token"]),
            await client.ask("POST", "/sessions", {}, token=one["token"]),
        ]
        assert {status for status, _ in refused} == {403}

    with_gateway(story)


def test_a_call_that_is_repeated_gets_the_same_turn() -> None:
    """Its connection broke before the answer; the turn went on."""

    async def story(client: Client) -> None:
        token = (await client.open())["token"]
        client.backend.go.clear()
        first = asyncio.create_task(client.chat(token=token))
        while not client.backend.asked:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(client.chat(token=token))
        client.backend.go.set()
        status, said = await again
        later = await client.chat(token=token)
        assert (status, said) == later and status == 200
        assert len(client.backend.asked) == 1

    with_gateway(story)


def test_calls_of_one_session_wait_their_turn() -> None:
    async def story(client: Client) -> None:
        token = (await client.open())["token"]
        client.backend.go.clear()
        bodies = [
            {"messages": [{"role": "user", "content": str(i)}]} for i in range(MAX_QUEUED + 1)
        ]
        tasks = []
        for number, body in enumerate(bodies):
            tasks.append(asyncio.create_task(client.chat(body, token=token)))
            session = client.sessions.find(client.sessions.of_token(token).id)
            while session.queued < number or not client.backend.asked:
                await asyncio.sleep(0)
        status, said = await client.chat({"messages": [USER]}, token=token)
        assert status == 429 and str(MAX_QUEUED) in said["error"]["message"]
        client.backend.go.set()
        assert {status for status, _ in await asyncio.gather(*tasks)} == {200}
        order = [ask.new[0]["content"] for _, ask in client.backend.asked]
        assert order == [str(i) for i in range(MAX_QUEUED + 1)]

    with_gateway(story)


def test_or_are_refused() -> None:
    async def story(client: Client) -> None:
        token = (await client.open())["token"]
        client.backend.go.clear()
        first = asyncio.create_task(client.chat(token=token))
        while not client.backend.asked:
            await asyncio.sleep(0)
        other = {"messages": [{"role": "user", "content": "b"}]}
        status, said = await client.chat(other, token=token)
        assert (status, said["error"]["code"]) == (400, "session_busy")
        client.backend.go.set()
        assert (await first)[0] == 200

    with_gateway(story, concurrent="refuse")


def test_a_turn_that_fails_can_be_asked_for_again() -> None:
    async def story(client: Client) -> None:
        token = (await client.open())["token"]
        client.backend.error = RuntimeError("secret detail")
        status, said = await client.chat(token=token)
        assert status == 503 and "secret" not in json.dumps(said)
        client.backend.error = None
        status, said = await client.chat(token=token)
        assert status == 200 and said["rlboost"]["turn"] == 0

    with_gateway(story)


def test_a_turn_has_a_time_limit() -> None:
    async def story(client: Client) -> None:
        client.backend.go.clear()
        status, said = await client.chat()
        assert (status, said["error"]["code"]) == (503, "turn_timeout")

    with_gateway(story, turn_seconds=0.01)


def test_rewards_and_ends() -> None:
    async def story(client: Client) -> None:
        session = await client.open(id="s")
        await client.chat(token=session["token"])
        _, said = await client.ask("GET", "/sessions/s", token=session["token"])
        assert said["turns"] == 1 and said["over"] is None
        reward = {"reward": 0.5, "metrics": {"solved": 1}}
        status, _ = await client.ask("POST", "/sessions/s/reward", reward, token=session["token"])
        assert status == 200
        assert [(name, reward) for name, reward, _ in client.backend.over] == [("s", 0.5)]
        assert (await client.ask("GET", "/sessions/s"))[0] == 404

    with_gateway(story)


def test_a_call_under_way_hears_that_its_session_is_over() -> None:
    """By a status that no client repeats the call for: there is nobody to repeat it to."""

    async def story(client: Client) -> None:
        token = (await client.open(id="s"))["token"]
        client.backend.go.clear()
        call = asyncio.create_task(client.chat(token=token))
        while not client.backend.asked:
            await asyncio.sleep(0)
        rewards = [{"reward": reward} for reward in (1.0, -7.0)]
        posted = [client.ask("POST", "/sessions/s/reward", reward) for reward in rewards]
        assert sorted([status for status, _ in await asyncio.gather(*posted)]) == [200, 404]
        assert len(client.backend.over) == 1, "one of two rewards counts"
        status, said = await call
        assert (status, said["error"]["code"]) == (410, "session_over")
        assert "its reward was posted" in said["error"]["message"]

    with_gateway(story)


async def test_a_session_that_ends_before_its_turn_has_begun_answers_the_call() -> None:
    sessions = Sessions(Fake(), GatewayLimits())
    session = sessions.open()
    progress = await sessions.ask(session, chat_call({"messages": [USER]}))
    await sessions.end(session, "its client ended it")
    with pytest.raises(ApiError, match="its client ended it") as refused:
        await progress.answered()
    assert refused.value.status == 410 and not session.lock.locked()


def test_limits_are_named() -> None:
    async def story(client: Client) -> None:
        await client.open()
        status, said = await client.ask("POST", "/sessions", {})
        assert status == 429 and "max_sessions is 1" in said["error"]["message"]
        status, said = await client.ask("POST", "/v1/chat/completions", b"x" * (MAX_BODY_BYTES + 1))
        assert status == 413 and f"{MAX_BODY_BYTES:,}" in said["error"]["message"]
        status, said = await client.ask("GET", "/v2")
        assert status == 404 and said["error"]["type"] == "invalid_request_error"
        status, said = await client.chat({"messages": [USER], "model": "other"})
        assert status == 404 and "'fake'" in said["error"]["message"]
        status, _ = await client.chat(b"{}", **{"Content-Encoding": "gzip"})
        assert status in (400, 415)

    with_gateway(story, max_sessions=1)


def test_what_nobody_uses_is_ended() -> None:
    async def story() -> None:
        now = [0.0]
        backend = Fake()
        limits = GatewayLimits(idle_seconds=10)
        sessions = Sessions(backend, limits, clock=lambda: now[0])
        sessions.open("old")
        now[0] = 6
        sessions.open("new")
        now[0] = 11
        await sessions.end_idle()
        assert [name for name, _, _ in backend.over] == ["old"] and len(sessions) == 1

    asyncio.run(story())


def test_no_secret_is_shown() -> None:
    session = Sessions(Fake(), GatewayLimits()).open("s")
    assert session.token.partition(".")[2] not in repr(session)


async def test_models_say_how_long_a_conversation_may_be() -> None:
    sessions = Sessions(Fake(), GatewayLimits())
    async with TestClient(TestServer(make_app(sessions, token=TOKEN))) as client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with client.get("/v1/models", headers=headers) as answer:
            (card,) = (await answer.json())["data"]
        assert (card["id"], card["max_model_len"]) == ("fake", 100)
    assert isinstance(client.session, aiohttp.ClientSession)


@pytest.mark.parametrize("own", [False, True])
def test_sampling_that_a_run_does_not_follow_is_listed(own: bool) -> None:
    async def story(client: Client) -> None:
        client.backend.model = replace(Fake.model, own_sampling=own)
        asked = {"max_completion_tokens": 5, "temperature": 0, "top_p": 0.9, "top_k": 5, "n": 1}
        body = {"messages": [USER], "stop": "x", "seed": 3, "max_tokens": None, **asked}
        of_sampling = ["temperature", "top_p", "top_k", "stop", "max_completion_tokens"]
        expected = ["seed", *(of_sampling if own else [])]
        _, said = await client.chat(body)
        assert said["rlboost"]["ignored"] == expected
        _, events = await client.chat({**body, "stream": True})
        last = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        assert last[-1]["rlboost"]["ignored"] == expected
        ids = {"token_ids": [1], "sampling_params": {"temperature": 0.5, "stop": []}}
        _, said = await client.ask("POST", "/inference/v1/generate", ids)
        assert said["rlboost"]["ignored"] == (["sampling_params.temperature"] if own else [])

    with_gateway(story)
