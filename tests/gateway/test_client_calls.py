"""What is taken, what is refused by name, and that no body does anything else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.chat.formats.objects import arguments_of, call_of
from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.chat_messages import canonical_messages, grown, same
from rlboost_jax.gateway.client_calls import CallSampling, chat_call, reward_of, token_call
from rlboost_jax.gateway.gateway_limits import MAX_DEPTH
from rlboost_jax.gateway.gateway_session import Called
from rlboost_jax.gateway.request_bodies import decode
from rlboost_jax.gateway.served import asked_for

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


def history(**function: Any) -> dict[str, Any]:
    """A message in which the assistant has called."""
    call = {"id": "1", "type": "function", "function": {"name": "f", **function}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("given", ["", " \n", None, "null", {}, "{}", " {} "])
def test_a_call_without_arguments_has_an_empty_object(given: Any) -> None:
    """As vLLM reads it: templates iterate over arguments."""
    for said in (history(arguments=given), history()):
        call = chat_call({"messages": [said, USER]}).messages[0]["tool_calls"][0]
        assert call["function"]["arguments"] == {}
    assert arguments_of(given) == ({}, "")  # of the policy's own calls alike


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ('{"a": ', "no JSON: Expecting value at ''"),
        ("city=Ulm", "no JSON: Expecting value at 'city=Ulm'"),
        ('{"a": NaN}', "no JSON: NaN is no number"),
        ('{"a": 1e999}', "no JSON: 1e999 is too large"),
        ('{"a": 99999999999999999999}', "more than 64 bits"),
        ({"a": 99999999999999999999}, "more than 64 bits"),
        ('{"a": "\\ud800"}', "no JSON: 'utf-8' codec"),
        ('{"a": 1, "a": 2}', "the key 'a' stands there twice"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "nested too deeply"),
        ('{"a": 1} and more', "more than one value"),
        ("[1]", "no object but [1]"),
        ([1], "no object but [1]"),
        (5, "no object but 5"),
        ("5", "no object but 5"),
        (True, "no object but true"),
        ('"{}"', 'no object but "{}"'),
    ],
)
def test_arguments_that_are_no_object_are_refused_by_their_place(given: Any, why: str) -> None:
    field = "messages[1].tool_calls[0].function.arguments"
    with pytest.raises(ApiError) as caught:
        chat_call({"messages": [USER, history(arguments=given), USER]})
    assert caught.value.status == 400 and str(caught.value).startswith(f"{field} are ")
    assert why in str(caught.value) and caught.value.body()["error"]["param"] == field
    assert call_of({"name": "f", "arguments": given}).problem  # of the policy's own calls alike


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "function_call"),
        ({"role": "assistant", "reasoning_content": 5}, "reasoning_content"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": ["f()"]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "tool_calls[0]"),
        (history(name=None), "tool_calls[0].function.name"),
        ({"role": "assistant", "content": {"text": "a"}}, "content"),
        ({"role": "tool", "content": 5, "tool_call_id": "1"}, "content"),
        ({"role": "tool", "content": "5"}, "tool_call_id"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.text"),
    ],
)
def test_history_that_cannot_be_read_is_named(message: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_call({"messages": [USER, message, USER]})
    assert caught.value.status == 400 and f"messages[1].{field}" in str(caught.value)


ODD = {"odd": 1}


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (ODD, ["odd"]),
        ({"messages": [{**USER, **ODD}]}, ["messages.odd"]),
        ({"messages": [{**USER, "name": "bob"}]}, ["messages.name"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", **ODD}]}]},
            ["messages.content.odd"],
        ),
        ({"messages": [history(**ODD), USER]}, ["messages.tool_calls.function.odd"]),
        (
            {"messages": [{**history(), "refusal": "no", "annotations": [], "audio": None}, USER]},
            ["messages.refusal"],
        ),
        (
            {"messages": [{"role": "tool", "content": "", "tool_call_id": "1", **ODD}]},
            ["messages.odd"],
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}, **ODD}]}, ["tools.odd"]),
        ({"tools": [{"function": {"name": "f", "strict": True}}]}, ["tools.function.strict"]),
        (
            {"stream": True, "stream_options": {"include_usage": True, **ODD}},
            ["stream_options.odd"],
        ),
        ({"stream_options": {"include_usage": True}}, ["stream_options"]),
        ({"logprobs": True, "top_logprobs": 5}, ["top_logprobs"]),
        ({"top_logprobs": 1}, ["top_logprobs"]),
        ({"max_tokens": 5, "max_completion_tokens": 4}, ["max_tokens"]),
        ({"max_tokens": 4, "max_completion_tokens": 4, "top_logprobs": 0}, []),
        (
            {"reasoning_effort": "low", "verbosity": "", "store": False},
            ["reasoning_effort", "store"],
        ),
    ],
)
def test_what_nothing_reads_is_listed(body: dict[str, Any], listed: list[str]) -> None:
    assert list(chat_call({"messages": [USER], **body}).ignored) == listed


def test_what_nothing_reads_of_a_token_call_is_listed() -> None:
    body = {"token_ids": [1], **ODD, "sampling_params": {**ODD, "skip_special_tokens": False}}
    assert token_call(body).ignored == ("odd", "sampling_params.odd")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_json", {"type": "object"}),
        ("regex", "a+"),
        ("grammar", "root ::= a"),
        ("typical_p", 0.9),
        ("mirostat", 2),
        ("include_stop_str_in_output", True),
        ("stop_sequences", ["a"]),
        ("format", "json"),
        ("structural_tag", "{}"),
        ("dynatemp_range", 0.5),
        ("no_repeat_ngram_size", 3),
        ("num_beams", 4),
        ("penalty_alpha", 0.6),
        ("documents", [{"text": "a"}]),
    ],
)
def test_other_servers_fields_that_change_what_is_sampled_are_refused(
    field: str, value: Any
) -> None:
    with pytest.raises(ApiError, match=f"^{field} is not supported"):
        chat_call({"messages": [USER], field: value})
    assert field not in chat_call({"messages": [USER], field: None}).ignored


@pytest.mark.parametrize("given", [True, None])
def test_one_call_at_a_time_is_another_turn(given: bool | None) -> None:
    many = chat_call({"messages": [USER], "parallel_tool_calls": given})
    one = chat_call({"messages": [USER], "parallel_tool_calls": False})
    assert (many.parallel_tool_calls, one.parallel_tool_calls) == (True, False)
    assert many.key != one.key and many.ignored == one.ignored == ()
    calls = tuple(Called(id=str(i), name="f", arguments="{}") for i in range(3))
    assert asked_for(many, calls) == calls and asked_for(one, calls) == calls[:1]
    with pytest.raises(ApiError, match="parallel_tool_calls is 'no'"):
        chat_call({"messages": [USER], "parallel_tool_calls": "no"})


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"max_tokens": 100.0}, {"max_tokens": 100}),  # JSON has one kind of numbers
        ({"top_k": 50.0}, {"top_k": 50}),
        ({"max_completion_tokens": None, "max_tokens": 5}, {"max_tokens": 5}),
        ({"stop": ""}, {"stop": ()}),
        ({"stop": []}, {"stop": ()}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"tool_choice": ""}, {}),
        ({"temperature": 0, "top_p": 1}, {"temperature": 0.0, "top_p": 1.0}),
    ],
)
def test_what_clients_leave_open_is_no_mistake(body: dict[str, Any], read: dict[str, Any]) -> None:
    call = chat_call({"messages": [USER], **body})
    assert call.ignored == () and call.sampling == CallSampling(**read)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [USER, {"role": "user", "content": "\ud83d"}]}, "messages[1].content"),
        ({"messages": [history(arguments={"a": ["\udc00x"]})]}, "arguments.a[0]"),
        ({"tools": [{"function": {"description": "a\ud800"}}]}, "tools[0].function.description"),
        ({"stop": ["\ud800"]}, "stop[0]"),
        ({"metadata": {"a": "\udbff"}}, "metadata.a"),
        ({"messages": [{"\ud800": "a"}]}, "messages[0].\\ud800"),
    ],
)
def test_a_text_that_was_cut_within_a_character_is_named(body: Any, place: str) -> None:
    """Clients in JavaScript send half of a pair as it is; JSON has no such text."""
    with pytest.raises(ApiError) as caught:
        decode(json.dumps(body).encode())
    assert f"{place} has half of a surrogate pair" in str(caught.value)


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_parts_of_text_are_text(kind: str) -> None:
    parts = [{"type": kind, "text": "a"}, {"type": kind, "text": "b"}]
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
    assert reward_of({"reward": True, "metrics": {"solved": False}}) == (1.0, {"solved": 0.0})
    with pytest.raises(ApiError, match=r"metrics\.solved is 'yes'"):
        reward_of({"reward": 0, "metrics": {"solved": "yes"}})
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
