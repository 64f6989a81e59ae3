"""A sampled turn as text, thinking, calls and a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.chat.conversation_setup import conversation_of
from tests.chat.conftest import ADD, opened, saved
from tests.chat.forms import FORMS
from tests.chat.test_conversation import CALL, QUESTION, ids, user


def test_a_turn_and_its_message(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("thinking"), talk("thinking", (ADD,))
    written = f"<think>\nso\n</think>\n\nI<|im_start|> add.{CALL}<tool_call>no</tool_call>"
    turn = conversation.parse(ids(tokenizer, f"{written}<|im_end|>"))
    assert turn.text == "I add.<tool_call>no</tool_call>", "special tokens are no text"
    good, broken = turn.calls
    assert broken.problem and not good.problem and good.id != broken.id
    assert turn.message == {
        "role": "assistant",
        "content": turn.text,
        "reasoning_content": "so",
        "tool_calls": [
            {
                "id": good.id,
                "type": "function",
                "function": {"name": "add", "arguments": {"a": 3, "b": 4}},
            }
        ],
    }


def test_calls_have_the_same_ids_whenever_they_are_read(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("chatml"), talk("chatml")
    one, same, other = (
        [call.id for call in conversation.parse(ids(tokenizer, text)).calls]
        for text in (CALL * 2, CALL * 2, f"x{CALL}")
    )
    assert one == same and len(set(one)) == 2 and not set(one) & set(other)
    assert all(len(identity) == 9 and identity.isalnum() for identity in one)


def test_calls_stay_in_the_text_for_a_template_that_writes_none(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("plain"), talk("plain", (ADD,))
    turn = conversation.parse(ids(tokenizer, f"So.\n{CALL}<|im_end|>"))
    assert turn.text == "So." and turn.calls[0].name == "add"
    assert turn.message == {"role": "assistant", "content": f"So.\n{CALL}"}


@given(st.lists(st.integers(min_value=0, max_value=339)))
def test_any_tokens_are_a_turn(talk, tokenizer_of, tokens):
    for form in ("thinking", "mistral", "llama3"):
        turn = talk(form).parse(tokens)
        assert turn.message["role"] == "assistant" and turn.message["content"] is not None


RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<<call>>",
            "close": "<</call>>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}


@pytest.fixture(scope="module")
def responding(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.PreTrainedTokenizerFast, "get_response_parser"):
        pytest.skip("response templates come with transformers 5.13")
    folder = saved(tmp_path_factory.mktemp("responding"), FORMS["thinking"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.response_template = RESPONSE
    tokenizer.save_pretrained(folder)
    return opened(folder, FORMS["thinking"])


def test_the_models_own_response_template_goes_first(responding):
    conversation = conversation_of(responding, tools=(ADD,))
    assert "first by the tokenizer's response_template" in conversation.notes[0]
    written = '<think>so</think>I add.<<call>>{"name": "add", "arguments": {"a": 3}}<</call>>'
    turn = conversation.parse(ids(responding, f"{written}<|im_end|>"))
    assert (turn.thinking, turn.text) == ("so", "I add.")
    assert [(call.name, call.arguments) for call in turn.calls] == [("add", {"a": 3})]
    following = conversation.after([QUESTION], turn, [user("And 5?")])
    assert responding.text(following.tokens).startswith("\n<|im_start|>user\nAnd 5?")


def test_what_it_cannot_read_the_format_reads(responding):
    conversation = conversation_of(responding, tools=(ADD,))
    turn = conversation.parse(ids(responding, "<<call>>{not JSON<</call>><|im_end|>"))
    assert turn.calls == () and "{not JSON" in turn.text
    turn = conversation.parse(ids(responding, f"{CALL}<|im_end|>"))
    assert turn.message["content"] or turn.calls
    chosen = conversation_of(responding, tools=(ADD,), tool_format="hermes")
    assert chosen.parse(ids(responding, f"{CALL}<|im_end|>")).calls[0].name == "add"
