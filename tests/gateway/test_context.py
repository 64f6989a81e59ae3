"""The tokens before a turn, by hand in the chat form of bytes."""

from collections.abc import Iterable

import pytest

from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.tokenizers import ByteTokenizer
from rlboost_jax.gateway.api_errors import ApiError
from rlboost_jax.gateway.client_calls import ChatCall, TokenCall, chat_call
from rlboost_jax.gateway.context import Context, ahead_of, room_for
from rlboost_jax.gateway.gateway_session import Ask
from rlboost_jax.messages import pack_tokens
from rlboost_jax.sequences.transcript import Transcript
from rlboost_jax.settings.data_config import DataConfig

T = ByteTokenizer
CHAT = conversation_of(ByteTokenizer(DataConfig()))


def call_of(*texts: str) -> ChatCall:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return chat_call({"messages": said})


def context_of(prompt: Iterable[int], number: int = 0) -> Context:
    return Context(number=number, transcript=Transcript(pack_tokens(list(prompt))))


def test_what_is_added_stands_behind_what_was_sampled() -> None:
    call = call_of("a")
    first = ahead_of(None, Ask(turn=0, call=call, begins=True, new=call.messages), CHAT)
    prompt = (T.BEGIN, T.USER, *b"a", T.END, T.ASSISTANT)
    assert (first.number, first.tokens, first.transcript.runs) == (0, prompt, ())
    sampled = (0xFF, *b" b", T.END)  # no text encodes to the first of these
    said = first.with_sampled(sampled, CHAT.parse(sampled))
    more = call_of("a", "\ufffd b", "c")
    second = ahead_of(said, Ask(turn=1, call=more, begins=False, new=more.messages[2:]), CHAT)
    given = (T.USER, *b"c", T.END, T.ASSISTANT)
    assert second.tokens == (*prompt, *sampled, *given)
    assert second.transcript.runs == (len(sampled), len(given))
    assert second.transcript.num_sampled == len(sampled)
    assert said.tokens == (*prompt, *sampled), "a turn that fails leaves it as it was"
    cut = first.with_sampled(sampled[:-1], CHAT.parse(sampled[:-1]))
    after = ahead_of(cut, Ask(turn=1, call=more, begins=False, new=more.messages[2:]), CHAT)
    assert after.tokens == (*prompt, *sampled[:-1], T.END, *given)  # its end is given


def test_a_rewritten_conversation_is_another_sequence() -> None:
    call = call_of("z")
    before = context_of([1], number=2).with_sampled([2], CHAT.parse([2]))
    after = ahead_of(before, Ask(turn=3, call=call, begins=True, new=call.messages), CHAT)
    assert (after.number, after.transcript.num_tokens) == (3, 0)


def test_a_turn_that_was_cut_off_goes_on_with_token_ids() -> None:
    before = context_of([1]).with_sampled([5, 6], CHAT.parse([5, 6]))
    call = TokenCall(tokens=(1, 5, 6), sampling=call_of("a").sampling)
    ahead = ahead_of(before, Ask(turn=1, call=call, begins=False), CHAT)
    after = ahead.with_sampled([7], CHAT.parse([7]))
    assert (after.tokens, after.transcript.num_turns) == ((1, 5, 6, 7), 1)


def test_room_is_what_the_slot_has_left() -> None:
    context = context_of(range(10))
    assert room_for(context, 16, asked=None, most=0) == 6
    assert room_for(context, 16, asked=4, most=5) == 4
    assert room_for(context, 16, asked=400, most=5) == 5
    with pytest.raises(ApiError, match=r"10 tokens.* 10,"):
        room_for(context, 10, asked=1, most=0)
