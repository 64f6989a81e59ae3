"""What a run's policy speaks with."""

import pytest

from configs import base
from rlboost_jax.chat.conversation import Given
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.environments.prompt_renderer import ChatRenderer, renderer_of
from rlboost_jax.environments.protocol import ToolCall, ToolResult
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config
from tests.chat.conftest import opened, saved
from tests.chat.forms import FORMS


def bytes_run(vocab_size):
    config = base.get_config()
    config.data.tokenizer = "bytes"
    config.model.vocab_size = vocab_size
    return run_config(config)


def test_a_model_needs_the_marks_of_a_conversation():
    """Ids beyond the vocabulary would be taken for others without a word."""
    with pytest.raises(
        ConfigError, match=r"vocab_size is 258, the tokenizer 'bytes' has 262 tokens"
    ):
        renderer_of(bytes_run(258), ())
    renderer = renderer_of(bytes_run(262), ())
    assert max(renderer.first("3 + 4?", ())) < 262


def test_results_are_the_users_where_a_template_has_no_role_for_them(tmp_path):
    """A policy may imitate calls wherever it likes; its episode would be spoilt each time."""
    tokenizer = opened(saved(tmp_path, FORMS["gemma"]), FORMS["gemma"])
    renderer = ChatRenderer(conversation_of(tokenizer), tokenizer.text, tokenizer.vocab_size)
    prompt = renderer.first("3 + 4?", ())
    (written,) = tokenizer.encode(
        ['<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call><end_of_turn>'], chat=True
    )
    parsed = renderer.parse(written)
    results = [ToolResult(call=ToolCall(name="add", arguments={}), content="no tool", failed=True)]
    before = [{"role": "user", "content": "3 + 4?"}]
    following, said = renderer.after(before, parsed, results, "Go on.", ())
    turn = "<start_of_turn>{}\n{}<end_of_turn>\n"
    text = turn.format("user", "no tool\nGo on.") + "<start_of_turn>model\n"
    assert isinstance(following, Given) and renderer.text(following.tokens) == f"\n{text}"
    assert [message["role"] for message in said] == ["assistant", "user"]
    again, _ = renderer.after([*before, *said], parsed, results, (), ())
    assert isinstance(again, Given) and len(prompt)
    assert "no tool<end_of_turn>" in renderer.text(again.tokens)
