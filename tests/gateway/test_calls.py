"""What is taken, what is refused by name, and that no body does anything else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.gateway.calls import chat_call, decode, reward_of, token_call
from rlboost_jax.gateway.errors import ApiError
from rlboost_jax.gateway.limits import MAX_DEPTH
from rlboost_jax.gateway.messages import canonical_messages, grown, same

USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("functions", [{}]),
        ("temperature", -1),
        ("temperature", True),
        ("top_p", 0),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("stop", ["x"] * 17),
        ("stop", [""]),
        ("stream", "yes"),
        ("stop_token_ids", list(range(9))),
        ("top_logprobs", 21),
        ("messages", []),
        ("messages", [{"role": "assistant", "content": "a"}]),
        ("messages", [{"role": "robot", "content": "a"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("tools", [{"type": "web_search"}]),
    ],
)
def test_what_is_refused_is_named(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat_call({"messages": [USER], field: value})
    assert caught.value.status == 400 and field in str(caught.value)
    assert caught.value.body()["error"]["message"] == str(caught.value)


def test_what_changes_nothing_is_taken() -> None:
    harmless = {"n": 1, "presence_penalty": 0, "logit_bias": {}, "tool_choice": "auto", "top_k": -1}
    call = chat_call({"messages": [USER], **harmless, "seed": 3, "user": "me", "metadata": None})
    assert call.ignored == ("seed", "user")
    assert call.sampling.top_k == 0


def test_one_message_written_in_many_ways() -> None:
    arguments = {"x": [1, 2.5], "y": "ä"}
    written = []
    for text, content in (
        (json.dumps(arguments), None),
        (json.dumps(arguments, indent=2), ""),
        (json.dumps(arguments, sort_keys=True, ensure_ascii=False), []),
    ):
        call = {"id": text[:3], "type": "function", "function": {"name": "f", "arguments": text}}
        said = {"role": "assistant", "content": content, "tool_calls": [call], "refusal": None}
        written.append(canonical_messages([said, USER])[0])
    assert all(same(written[0], other) and same(other, written[0]) for other in written)
    other = {**written[0], "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    assert not same(written[0], other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 99999999999999999999}',
        '{"a": "\\ud800"}',
        '{"a": 1, "a": 2}',
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        '{"a": 1} and more',
        "[1]",
    ],
)
def test_arguments_that_nothing_else_can_carry_stay_text(text: str) -> None:
    """Not a number of another worth each time, which would begin another sequence."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    one, other, _ = canonical_messages([said, said, USER])
    assert one["tool_calls"][0]["function"]["arguments"] == text and same(one, other)


def test_parts_of_text_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one, two = canonical_messages(
        [{"role": "user", "content": "a\nb"}, {"role": "user", "content": parts}]
    )
    assert one == two


def test_thinking_need_not_come_back() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    (kept, left, other, _) = canonical_messages(
        [said, {"role": "assistant", "content": "a"}, {**said, "reasoning_content": "x"}, USER]
    )
    assert same(kept, left) and same(kept, kept) and not same(kept, other)
    assert grown([kept], [left, USER]) == (USER,)  # type: ignore[list-item]


def test_depth_is_limited() -> None:
    deep: Any = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(ApiError, match=str(MAX_DEPTH)):
        decode(json.dumps({"x": deep}).encode())
    with pytest.raises(ApiError):
        decode(b"[" * 100_000)


def test_rewards_are_numbers() -> None:
    assert reward_of({"reward": 1, "metrics": {"solved": 1}}) == (1.0, {"solved": 1.0})
    for bad in ({}, {"reward": "1"}, {"reward": 1e300}, {"reward": 0, "metrics": {"a": None}}):
        with pytest.raises(ApiError):
            reward_of(bad)


_TEXTS = st.sampled_from(["", "a", "name", "function", "user", "\ufffd", "type", "text"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, -1e300, 1e300]) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    [
        *("messages", "tools", "stop", "n", "temperature", "max_tokens", "stream_options"),
        *("token_ids", "sampling_params", "tool_choice", "logit_bias", "top_k", "model"),
    ]
)


@given(st.dictionaries(_FIELDS, _VALUES))
def test_no_body_raises_anything_else(value: dict[str, Any]) -> None:
    for read in (chat_call, token_call, reward_of):
        for body in (value, {"messages": [USER], "token_ids": [1], **value}):
            try:
                found = read(decode(json.dumps(body).encode()))
            except ApiError as error:
                assert 400 <= error.status < 500 and len(str(error)) < 1000
            else:
                assert found == read(json.loads(json.dumps(body)))
