"""The chat form of bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import base
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.tokenizers import ByteTokenizer, open_tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config


def octets(**data):
    config = base.get_config()
    config.data.update({"tokenizer": "bytes", **data})
    return open_tokenizer(run_config(config).data)


TOKENIZER = octets()
CONVERSATION = conversation_of(TOKENIZER)
ROLES = st.sampled_from(["system", "user", "tool"])
MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, ROLES, st.text()),
    min_size=1,
)


def test_a_conversation_by_hand():
    prompt = CONVERSATION.first([{"role": "user", "content": "3 + 4?"}])
    assert TOKENIZER.text(prompt) == "<begin><user>3 + 4?<end><assistant>"
    turn = CONVERSATION.parse([*b'<tool_call>{"name": "add"}</tool_call>', ByteTokenizer.END])
    assert [call.name for call in turn.calls] == ["add"] and turn.stop == ByteTokenizer.END
    new = [{"role": "tool", "content": "7"}]
    assert TOKENIZER.text(CONVERSATION.after([], turn, new).tokens) == "<tool>7<end><assistant>"
    cut = CONVERSATION.parse([*b"7"])
    given = CONVERSATION.after([], cut, new).tokens
    assert TOKENIZER.text(given) == "<end><tool>7<end><assistant>"
    assert max(prompt) < CONVERSATION.vocab_size == 262 and TOKENIZER.vocab_size == 258


@given(MESSAGES, st.binary(), MESSAGES)
def test_turn_by_turn_is_the_whole(before, said, new):
    """And no text makes a mark: there are as many as messages."""
    prompt = CONVERSATION.first(before)
    turn = CONVERSATION.parse([*said, ByteTokenizer.END])
    following = CONVERSATION.after(before, turn, new).tokens
    try:
        text = said.decode()
    except UnicodeDecodeError:
        text = None
    tokens = [*prompt, *said, ByteTokenizer.END, *following]
    assert sum(token >= 256 for token in tokens) == 2 * (len(before) + len(new)) + 4
    if text is not None:
        whole = [*before, {"role": "assistant", "content": text}, *new]
        assert np.array_equal(CONVERSATION.first(whole), tokens)


def test_an_example_of_a_call():
    call = {"function": {"name": "add", "arguments": {"a": 3}}}
    shown = [{"role": "assistant", "content": "so", "tool_calls": [call]}]
    tokens = CONVERSATION.first(shown)[2:-2]
    turn = CONVERSATION.parse(tokens)
    assert turn.text == "so" and turn.calls[0].arguments == {"a": 3}


def test_what_it_does_not_take():
    with pytest.raises(ChatRefused, match="no mark for the role 'critic'"):
        CONVERSATION.first([{"role": "critic", "content": "x"}])
    with pytest.raises(ConfigError, match=r"leave data.chat_template empty"):
        conversation_of(octets(chat_template="{{ messages[0].content }}"))
