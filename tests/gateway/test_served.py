"""Turns by HTTP are an engine's own, bit for bit, however many sessions there are."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.tokenizers import HuggingFaceTokenizer
from rlboost_jax.gateway.served import EngineBackend
from rlboost_jax.settings.data_config import DataConfig
from tests.gateway.oracle import Turn, assert_engine_samples, engine_of
from tests.gateway.places import MAX_TOKENS, Place, running
from tests.patience import PATIENCE_SECONDS

Message = dict[str, Any]
MOST = 24


async def say(
    client: aiohttp.ClientSession, place: Place, session: str, messages: list[Message], **more: Any
) -> dict[str, Any]:
    body = {"messages": messages, "logprobs": True, "return_token_ids": True, "max_tokens": MOST}
    headers = {**place.headers, "X-Session-ID": session}
    url = f"{place.url}/v1/chat/completions"
    async with client.post(url, json={**body, **more}, headers=headers) as answer:
        value: dict[str, Any] = await answer.json()
        assert answer.status == 200, value
        return value


def turn_of(answer: dict[str, Any]) -> Turn:
    choice = answer["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return answer["prompt_token_ids"], choice["token_ids"], logprobs


async def episode(
    client: aiohttp.ClientSession, place: Place, session: str, turns: int, **more: Any
) -> list[dict[str, Any]]:
    messages: list[Message] = [{"role": "user", "content": f"I am {session}. What is 3 + 4?"}]
    answers = []
    for turn in range(turns):
        answers.append(await say(client, place, session, messages, **more))
        said = answers[-1]["choices"][0]["message"]
        messages += [
            said,
            {"role": "user", "content": f"And {turn} + {len(said['content'] or '')}?"},
        ]
    return answers


async def test_ten_turns_are_the_engines(gateway: Place, checkpoint: Path) -> None:
    async with aiohttp.ClientSession() as client:
        answers = await episode(client, gateway, "ten", 10)
    assert {answer["rlboost"]["sequence"] for answer in answers} == {0}
    engine = engine_of(checkpoint, MAX_TOKENS)
    assert_engine_samples(engine, "ten", [turn_of(answer) for answer in answers], most=MOST)
    reasons = {answer["choices"][0]["finish_reason"] for answer in answers}
    assert reasons <= {"stop", "length"} and "length" in reasons


async def test_what_is_said_need_not_encode_to_what_was_sampled(gateway: Place) -> None:
    """Or the test above would pass with conversations that are encoded again."""
    async with aiohttp.ClientSession() as client:
        answers = await episode(client, gateway, "ten", 10)
    tokenizer = gateway.backend._tokenizer
    again = [
        tokenizer.encode([answer["choices"][0]["message"]["content"]], chat=True)[0]
        for answer in answers
    ]
    for answer in answers:  # of random weights: most are no whole characters
        choice = answer["choices"][0]
        entries = choice["logprobs"]["content"]
        for entry, token in zip(entries, choice["token_ids"], strict=True):
            assert (entry["bytes"] is None) == (token >= tokenizer.vocab_size), "rows without one"
        parts = b"".join(bytes(entry["bytes"] or ()) for entry in entries)
        assert parts.decode(errors="replace") == tokenizer.text(choice["token_ids"])
    assert any(
        ids != answer["choices"][0]["token_ids"] for ids, answer in zip(again, answers, strict=True)
    )


async def test_token_calls_are_the_engines(gateway: Place, checkpoint: Path) -> None:
    """What follows a turn is whatever ids the client puts there."""
    known, turns = [1, 60, 2, 1, 80], []
    async with aiohttp.ClientSession() as client:
        for turn in range(4):
            parameters = {
                "temperature": 0.7,
                "max_tokens": MOST,
                "logprobs": 1,
                "stop_token_ids": [2],
            }
            async with client.post(
                f"{gateway.url}/inference/v1/generate",
                json={"token_ids": known, "sampling_params": parameters},
                headers={**gateway.headers, "X-Session-ID": "ids"},
            ) as answer:
                choice = (await answer.json())["choices"][0]
            entries = choice["logprobs"]["content"]
            ids = choice["token_ids"]
            assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in ids]
            turns.append((known, ids, [entry["logprob"] for entry in entries]))
            known = [*known, *ids, 1, 30 + turn, 31]
    engine = engine_of(checkpoint, MAX_TOKENS)
    assert_engine_samples(engine, "ids", turns, most=MOST, temperature=0.7, stops=[2])


async def test_a_conversation_that_is_rewritten_begins_another_sequence(
    gateway: Place, checkpoint: Path
) -> None:
    first = [{"role": "user", "content": "What is 3 + 4?"}]
    async with aiohttp.ClientSession() as client:
        one = await say(client, gateway, "rewritten", first)
        said = {"role": "assistant", "content": "7"}  # which it has not said
        other = [*first, said, {"role": "user", "content": "And 5?"}]
        two = await say(client, gateway, "rewritten", other)
    assert [answer["rlboost"]["sequence"] for answer in (one, two)] == [0, 1]
    engine = engine_of(checkpoint, MAX_TOKENS)
    assert_engine_samples(engine, "rewritten", [turn_of(one)], most=MOST)
    assert_engine_samples(engine, "rewritten", [turn_of(two)], most=MOST, sequence=1)


async def test_two_hundred_sessions_at_once(gateway: Place, checkpoint: Path) -> None:
    """On 16 slots; each gets what it would alone."""
    connector = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as client:
        names = [f"many-{number}" for number in range(200)]
        found = await asyncio.gather(*(episode(client, gateway, name, 3) for name in names))
        assert len(gateway.sessions) == 200
        for name in names:
            url = f"{gateway.url}/sessions/{name}"
            async with client.delete(url, headers=gateway.headers) as answer:
                assert answer.status == 200
    assert len(gateway.sessions) == 0 and not gateway.backend._contexts
    engine = engine_of(checkpoint, MAX_TOKENS)
    for name, answers in [*zip(names, found, strict=True)][::40]:
        assert_engine_samples(engine, name, [turn_of(each) for each in answers], most=MOST)


async def test_a_stream_says_the_same(gateway: Place) -> None:
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    async with aiohttp.ClientSession() as client:
        streamed = await _streamed(client, gateway, "streamed", messages)
        whole = await say(client, gateway, "streamed", messages)  # the same turn once more
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed)
        choice = whole["choices"][0]
        assert text == choice["message"]["content"]
        ids = [token for chunk in streamed for token in chunk["choices"][0].get("token_ids", ())]
        assert ids == choice["token_ids"]
        found = [chunk["choices"][0]["logprobs"] for chunk in streamed]
        entries = [entry for each in found if each for entry in each["content"]]
        assert entries == choice["logprobs"]["content"]
        assert len(streamed) > 3  # it came in parts


async def _streamed(
    client: aiohttp.ClientSession, place: Place, session: str, messages: list[Message]
) -> list[dict[str, Any]]:
    body = {"messages": messages, "stream": True, "logprobs": True, "return_token_ids": True}
    headers = {**place.headers, "X-Session-ID": session}
    url = f"{place.url}/v1/chat/completions"
    async with client.post(url, json={**body, "max_tokens": MOST}, headers=headers) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


async def test_a_stop_text_ends_a_turn(gateway: Place) -> None:
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    async with aiohttp.ClientSession() as client:
        whole = await say(client, gateway, "stops", messages)
        text = whole["choices"][0]["message"]["content"]
        stop = text[len(text) // 2 :][:2]
        url = f"{gateway.url}/sessions/stops"
        async with client.delete(url, headers=gateway.headers):
            pass
        cut = await say(client, gateway, "stops", messages, stop=[stop])
        choice = cut["choices"][0]
        assert choice["message"]["content"].rstrip() == text[: text.index(stop)].rstrip()
        assert choice["finish_reason"] == "stop"
        ids = whole["choices"][0]["token_ids"]
        assert choice["token_ids"] == ids[: len(choice["token_ids"])] and len(ids) > len(
            choice["token_ids"]
        )
        more = [*messages, choice["message"], {"role": "user", "content": "On."}]
        after = await say(client, gateway, "stops", more)
        assert after["rlboost"]["sequence"] == 0


async def test_the_policys_own_stop_strings_end_every_turn(
    gateway: Place, served: EngineBackend, checkpoint: Path
) -> None:
    """Beside those of a call, in its text, in its stream, and in what it goes on from."""
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    async with aiohttp.ClientSession() as client:
        whole = await say(client, gateway, "own.stops", messages)
    text = whole["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 :][:3]
    tokenizer = HuggingFaceTokenizer(DataConfig(tokenizer=str(checkpoint), stop_strings=(stop,)))
    chat = conversation_of(tokenizer, unstable="new_sequence")
    policy = served._policy
    sampling = msgspec.structs.replace(policy.sampling, stops=chat.stops)
    with running(
        EngineBackend(served._thread, replace(policy, sampling=sampling), chat, tokenizer)
    ) as place:
        async with aiohttp.ClientSession() as client:
            cut = await say(client, place, "own.stops", messages)
            choice = cut["choices"][0]
            assert choice["message"]["content"].rstrip() == text[: text.index(stop)].rstrip()
            assert choice["finish_reason"] == "stop"
            ids, own = whole["choices"][0]["token_ids"], choice["token_ids"]
            assert own == ids[: len(own)] and len(own) < len(ids)
            assert stop in tokenizer.text(own) and stop not in tokenizer.text(own[:-1])
            more = [*messages, choice["message"], {"role": "user", "content": "On."}]
            after = await say(client, place, "own.stops", more)
            assert after["rlboost"]["sequence"] == 0
            url = f"{place.url}/sessions/own.stops"
            async with client.delete(url, headers=place.headers):
                pass
            chunks = await _streamed(client, place, "own.stops", messages)
    parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(parts) == choice["message"]["content"], "nothing of a string was streamed"


async def test_a_context_that_is_full_says_so(served: Any) -> None:
    with running(served) as place:
        async with aiohttp.ClientSession() as client:
            body = {"messages": [{"role": "user", "content": "x " * MAX_TOKENS}]}
            url = f"{place.url}/v1/chat/completions"
            async with client.post(url, json=body, headers=place.headers) as answer:
                said = (await answer.json())["error"]
                assert answer.status == 400 and said["code"] == "context_length_exceeded"
                assert str(MAX_TOKENS) in said["message"]


async def test_what_is_longer_than_any_context_is_refused_before_tokens_are_made_of_it(
    served: Any,
) -> None:
    with running(served) as place:
        async with aiohttp.ClientSession() as client:
            url = f"{place.url}/v1/chat/completions"
            for content in ("x" * (2**20 + 1), "x" * 2**20):  # nobody has counted the first
                body = {"messages": [{"role": "user", "content": content}]}
                async with client.post(url, json=body, headers=place.headers) as answer:
                    said = (await answer.json())["error"]
                    assert answer.status == 400 and said["code"] == "context_length_exceeded"
                    assert ("far more tokens" in said["message"]) == (len(content) > 2**20)
