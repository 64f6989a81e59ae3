"""What a call of a session is, by a model of what its client has been answered."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.client_calls import ChatCall, TokenCall, chat_call
from rlboost_jax.gateway.gateway_limits import GatewayLimits
from rlboost_jax.gateway.gateway_session import (
    AnsweredTurn,
    Ask,
    Busy,
    GatewaySession,
    SampledTurn,
    UnderWay,
)


def call_of(*messages: tuple[str, str], **more: Any) -> ChatCall:
    said = [{"role": role, "content": content} for role, content in messages]
    return chat_call({"messages": said, **more})


def turn_of(text: str, tokens: tuple[int, ...] = (1, 2)) -> SampledTurn:
    return SampledTurn(
        tokens=tokens,
        logprobs=(-1.0,) * len(tokens),
        finish="stop",
        text=text,
        message={"role": "assistant", "content": text},
        prompt=(9,),
    )


def asked(session: GatewaySession, call: Any, key: str = "") -> Ask:
    decision = session.receive(call, key)
    assert isinstance(decision, Ask)
    return decision


def test_a_conversation_that_grows_is_one_sequence() -> None:
    session = GatewaySession(GatewayLimits())
    first = asked(session, call_of(("user", "a")))
    assert first.begins and [m["content"] for m in first.new] == ["a"]
    session.sampled(turn_of("b"))
    second = asked(session, call_of(("user", "a"), ("assistant", " b\n"), ("user", "c")))
    assert not second.begins and [m["content"] for m in second.new] == ["c"]
    assert (first.turn, second.turn) == (0, 1)


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "A"), ("assistant", "b"), ("user", "c")],  # what was asked is another
        [("user", "a"), ("assistant", "x"), ("user", "c")],  # the policy has not said that
        [("user", "c")],  # forgotten
        [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")],
    ],
)
def test_a_conversation_that_is_rewritten_begins_another(messages: list[tuple[str, str]]) -> None:
    session = GatewaySession(GatewayLimits())
    asked(session, call_of(("user", "a")))
    session.sampled(turn_of("b"))
    ask = asked(session, call_of(*messages))
    assert ask.begins and len(ask.new) == len(messages)


def test_other_tools_begin_another_sequence() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    session = GatewaySession(GatewayLimits())
    asked(session, call_of(("user", "a")))
    session.sampled(turn_of("b"))
    more = call_of(("user", "a"), ("assistant", "b"), ("user", "c"), tools=[tool])
    assert asked(session, more).begins


def test_an_equal_call_gets_the_same_turn_again() -> None:
    session = GatewaySession(GatewayLimits())
    call = call_of(("user", "a"))
    asked(session, call)
    assert isinstance(session.receive(call), UnderWay)
    answered = session.sampled(turn_of("b"))
    assert session.receive(call_of(("user", "a"), stream=True)) is answered
    assert session.turns == 1


def test_an_idempotency_key_tells_repetitions_where_there_is_one() -> None:
    session = GatewaySession(GatewayLimits())
    call = call_of(("user", "a"))
    asked(session, call, "1")
    answered = session.sampled(turn_of("b"))
    assert session.receive(call, "1") is answered
    assert asked(session, call, "2").begins  # another sample


def test_one_turn_at_a_time() -> None:
    session = GatewaySession(GatewayLimits())
    asked(session, call_of(("user", "a")))
    assert isinstance(session.receive(call_of(("user", "b"))), Busy)


def test_a_turn_that_fails_changes_nothing() -> None:
    session = GatewaySession(GatewayLimits())
    call = call_of(("user", "a"))
    first = asked(session, call)
    session.failed()
    assert asked(session, call) == first and session.turns == 0


def test_what_is_over_says_its_newest_turn_only() -> None:
    session = GatewaySession(GatewayLimits())
    call = call_of(("user", "a"))
    asked(session, call)
    answered = session.sampled(turn_of("b"))
    session.end("done")
    assert session.receive(call) is answered
    with pytest.raises(ApiError, match="done") as caught:
        session.receive(call_of(("user", "b")))
    assert caught.value.status == 410


def test_turns_are_limited() -> None:
    session = GatewaySession(GatewayLimits(max_turns=1))
    asked(session, call_of(("user", "a")))
    session.sampled(turn_of("b"))
    with pytest.raises(ApiError, match="max_turns is 1"):
        session.receive(call_of(("user", "a"), ("assistant", "b"), ("user", "c")))


@pytest.mark.parametrize(
    ("tokens", "given_tokens"), [((9, 1, 2, 5), (5,)), ((9, 1, 3, 5), None), ((9, 1, 2), None)]
)
def test_token_ids_continue_what_they_begin_with(
    tokens: tuple[int, ...], given_tokens: tuple[int, ...] | None
) -> None:
    session = GatewaySession(GatewayLimits())
    call = TokenCall(tokens=(9,), sampling=call_of(("user", "a")).sampling)
    asked(session, call)
    session.sampled(turn_of("b"))
    ask = asked(session, TokenCall(tokens=tokens, sampling=call.sampling))
    assert ask.begins == (given_tokens is None)
    assert ask.given == (tokens if given_tokens is None else given_tokens)


@given(st.lists(st.sampled_from(["grow", "again", "rewrite", "fail"]), max_size=30))
def test_any_order_of_calls(actions: list[str]) -> None:
    """A client that keeps its own history; every turn is made once, and answered again."""
    session = GatewaySession(GatewayLimits())
    history: list[tuple[str, str]] = [("user", "0")]
    answered: AnsweredTurn | None = None
    made = 0
    for number, action in enumerate(actions):
        if action == "again" and answered is not None:
            assert session.receive(answered.call) is answered
            continue
        if action == "rewrite":
            history = [("user", f"rewritten {number}")]
        elif answered is not None and history == _of(answered.call):
            text = answered.sampled.text
            history = [*history, ("assistant", text), ("user", str(number))]
        ask = asked(session, call_of(*history))
        grew = len(history) > 1 and answered is not None and action != "rewrite"
        assert ask.begins != (grew and history[:-2] == _of(answered.call))
        if action == "fail":
            session.failed()
            continue
        answered = session.sampled(turn_of(f"said {number}"))
        made += 1
    assert session.turns == made


def _of(call: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in call.messages]
