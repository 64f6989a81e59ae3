"""Bytes that calls hold, in sum: what is over it waits, or is refused, and is not read."""

import asyncio
import contextlib
import gc
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rlboost_jax.gateway import gateway_app
from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.gateway_app import make_app
from rlboost_jax.gateway.gateway_limits import (
    HELD_PER_BYTE,
    MAX_VALUES,
    GatewayLimits,
    listener_limits,
)
from rlboost_jax.gateway.request_bodies import decode, decoded_bytes
from rlboost_jax.gateway.sessions import Sessions
from rlboost_jax.trust import bytes_in_flight
from rlboost_jax.trust.bytes_in_flight import BytesInFlight
from tests.gateway.fakes import Fake
from tests.listeners import limits_of

TOKEN = "own"
KIB = 2**10
LIMITS = limits_of(
    name="gateway",
    setting="--held_bytes",
    message_bytes=64 * KIB,
    credential_bytes=100 * KIB,
    total_bytes=256 * KIB,
)


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[BytesInFlight]:
    """Give all gateways made from now on `LIMITS` and no patience."""
    made: list[BytesInFlight] = []

    def flight(limits: Any) -> BytesInFlight:
        made.append(BytesInFlight(LIMITS, wait_seconds=0.0))
        return made[-1]

    monkeypatch.setattr(gateway_app, "BytesInFlight", flight)
    return made


@contextlib.asynccontextmanager
async def serving(backend: Fake) -> AsyncIterator[TestClient]:
    sessions = Sessions(backend, GatewayLimits())
    async with TestClient(TestServer(make_app(sessions, token=TOKEN))) as client:
        yield client
        backend.go.set()
        await sessions.close()


def call(size: int, text: str = "x") -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text * size}]}).encode()


def test_one_session_holds_so_much_and_the_others_go_on(flights: list[BytesInFlight]) -> None:
    """Its calls wait for a turn, so that what they hold stays held."""

    async def story() -> None:
        backend = Fake()
        async with serving(backend) as client:
            tokens = [await _session(client) for _ in range(2)]
            backend.go.clear()
            first = asyncio.create_task(_ask(client, tokens[0], call(60 * KIB)))
            await _until(lambda: flights[0].budget.total > 60 * KIB)
            status, headers, said = await _ask(client, tokens[0], call(60 * KIB, "y"))
            assert status == 429 and headers["Retry-After"] == "1"
            assert "102,400 bytes for one credential (--held_bytes)" in said["error"]["message"]
            second = asyncio.create_task(_ask(client, tokens[1], call(60 * KIB)))
            await _until(lambda: flights[0].budget.total > 120 * KIB)
            backend.go.set()
            assert [(await each)[0] for each in (first, second)] == [200, 200]
            status, _, _ = await _ask(client, tokens[0], call(60 * KIB, "y"))
            assert status == 200
            assert flights[0].budget.total == 0

    asyncio.run(story())


def test_all_together_hold_so_much(flights: list[BytesInFlight]) -> None:
    async def story() -> None:
        backend = Fake()
        async with serving(backend) as client:
            tokens = [await _session(client) for _ in range(5)]
            backend.go.clear()
            asked = [asyncio.create_task(_ask(client, each, call(60 * KIB))) for each in tokens]
            done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            (refused,) = done
            status, _, said = refused.result()
            assert status == 429
            assert "at most 262,144 bytes at a time (--held_bytes)" in said["error"]["message"]
            backend.go.set()
            assert {(await each)[0] for each in waiting} == {200}
            assert flights[0].budget.total == 0

    asyncio.run(story())


def test_a_body_without_a_length_is_counted_as_it_comes(flights: list[BytesInFlight]) -> None:
    async def story() -> None:
        backend = Fake()
        async with serving(backend) as client:
            token = await _session(client)
            flights[0].budget.take("others", 100 * KIB)
            flights[0].budget.take("more of them", 100 * KIB)

            async def chunks(size: int) -> AsyncIterator[bytes]:
                data = call(size)
                for start in range(0, len(data), KIB):
                    yield data[start : start + KIB]

            assert (await _ask(client, token, chunks(20 * KIB)))[0] == 200
            assert (await _ask(client, token, chunks(60 * KIB)))[0] == 429
            assert flights[0].budget.total == 200 * KIB

    asyncio.run(story())


def test_an_answer_that_nobody_takes_is_held_and_its_client_hung_up_on(
    flights: list[BytesInFlight], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytes_in_flight, "SEND_SECONDS", 1.0)

    async def story() -> None:
        backend = Fake()
        sessions = Sessions(backend, GatewayLimits())
        async with TestServer(make_app(sessions, token=TOKEN)) as server:
            app_text = "x" * (64 * KIB)
            monkeypatch.setattr(
                gateway_app, "models", lambda *_: {"data": [{"id": app_text * 1_000}]}
            )
            flights[0].budget.limits = replace(LIMITS, total_bytes=2**27)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            ask = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}"
            writer.write(ask.encode() + b"\r\n\r\n")
            await _until(lambda: flights[0].budget.total > 64 * 10**6)
            await _until(lambda: flights[0].budget.total == 0)  # it is hung up on
            with contextlib.suppress(ConnectionError):
                while await reader.read(2**20):
                    pass
            writer.close()
            await _until(lambda: not server.handler.connections)

    asyncio.run(story())


@pytest.mark.parametrize(
    "part",
    ["[{}]", "[[],[]]", '{"a":{}}', "[1000,2000]", "[0.5,1.5]", '["ab","cd"]', '"\\ud83d\\ude00"'],
)
def test_what_is_counted_bounds_what_is_held(part: str) -> None:
    """Measured: decoded JSON of many small values takes up no more than is counted for it."""
    body = ('{"messages":[' + ",".join([part] * 5_000) + "]}").encode()
    value = decode(body)
    assert _bytes_of(value) <= HELD_PER_BYTE * max(len(body), decoded_bytes(value))


def test_a_body_of_more_values_than_any_call_has_is_refused() -> None:
    with pytest.raises(ApiError, match="over 500,000 values"):
        decoded_bytes([[]] * (MAX_VALUES + 1))
    assert decoded_bytes([1] * (MAX_VALUES + 1)) > MAX_VALUES  # numbers: what tokens are


def test_limits_of_a_gateway_come_in_order() -> None:
    limits = listener_limits(GatewayLimits())
    assert limits.message_bytes < limits.credential_bytes < limits.total_bytes
    assert limits.total_bytes == GatewayLimits().held_bytes


def _bytes_of(value: Any) -> int:
    """Return what the interpreter says that all objects in `value` take up, each counted once.

    Not `tracemalloc`: it counts what other threads of the test process allocate meanwhile.
    """
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting += gc.get_referents(each)
    return sum(map(sys.getsizeof, seen.values()))


async def _session(client: TestClient) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with client.post("/sessions", json={}, headers=headers) as answer:
        return (await answer.json())["token"]


async def _ask(client: TestClient, token: str, body: Any) -> tuple[int, Any, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with client.post("/v1/chat/completions", data=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.json()
    except aiohttp.ClientConnectionError:  # it still sent, and was hung up on after the answer
        return 429, {}, {}


async def _until(done: Any) -> None:
    while not done():
        await asyncio.sleep(0)
