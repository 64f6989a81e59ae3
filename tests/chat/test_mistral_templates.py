"""The chat templates that Mistral's own package writes, each proved or refused, and its tokenizer.

They are skipped where mistral-common is not installed, which needs tiktoken and more:
`pip install mistral-common`, into an environment of its own.
"""

import base64
import json

import pytest

from rlboost_jax.chat.conversation import Given, NewSequence, UnstableTemplate
from rlboost_jax.chat.conversation_setup import conversation_of
from tests.chat.conftest import ADD, BEGIN
from tests.chat.forms import MISTRAL_MARKS, Form
from tests.chat.test_conversation import QUESTION, ids, joined, result, user

MARKS = (*MISTRAL_MARKS, "[THINK]", "[/THINK]")
STABLE = {"v7": False, "v11": False, "v13": True}  # with tools; without them all are
CALLS = {  # as its tokenizer writes them
    "v7": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 3}, "id": "abcdefghi"}]',
    "v11": '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 3}',
    "v13": '[TOOL_CALLS]add[ARGS]{"a": 3}',
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Mistral's own tokenizer of a version, each byte a token, and the template it writes."""
    chat = pytest.importorskip(
        "mistral_common.integrations.chat_templates.chat_templates",
        reason="mistral-common is not installed; see the head of this file",
    )
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    folder = tmp_path_factory.mktemp("tekken")

    def make(version):
        infill = ("[PREFIX]", "[MIDDLE]", "[SUFFIX]")
        thinking = ("[THINK]", "[/THINK]") if version == "v13" else ()
        special = ["<unk>", "<s>", "</s>", *MISTRAL_MARKS, *infill, *thinking]
        vocab = [
            {"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": None}
            for i in range(256)
        ]
        config = {
            "pattern": r"[\s\S]",
            "num_vocab_tokens": 256,
            "default_vocab_size": 256 + len(special),
            "default_num_special_tokens": len(special),
            "version": version,
        }
        marks = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(special)]
        path = folder / f"{version}.tekken.json"
        path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": marks}))
        template = chat.convert_tokenizer_to_chat_template(path, plain_thinking_support=False)
        return MistralTokenizer.from_file(path), Form(template, ("</s>",), MARKS)

    return make


def text_of(tokenizer, messages) -> str:
    """What Mistral's tokenizer makes of a conversation."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    request = ChatCompletionRequest.from_openai(messages=messages, tools=[ADD])
    tokens = tokenizer.encode_chat_completion(request).tokens
    return tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)


@pytest.mark.parametrize("version", STABLE)
def test_it_is_proved_or_refused(version, theirs, tokenizer_of):
    _, form = theirs(version)
    made = tokenizer_of(form)
    assert "continued all turns of" in " ".join(conversation_of(made).notes)
    if STABLE[version]:
        notes = " ".join(conversation_of(made, tools=(ADD,)).notes)
        assert "continued all turns of" in notes and "as mistral" in notes
    else:
        with pytest.raises(UnstableTemplate, match="AVAILABLE_TOOLS"):
            conversation_of(made, tools=(ADD,))


@pytest.mark.parametrize("version", STABLE)
def test_turn_by_turn_is_what_its_own_tokenizer_makes_of_the_whole(version, theirs, tokenizer_of):
    """A call, its result, an answer; then another question, for which older ones begin anew."""
    reference, form = theirs(version)
    made = tokenizer_of(form)
    unstable = "refuse" if STABLE[version] else "new_sequence"
    conversation = conversation_of(made, tools=(ADD,), unstable=unstable)

    def same(tokens) -> None:
        ours = made.text(tokens).replace(BEGIN, "<s>")
        assert ours == text_of(reference, messages)

    messages = [QUESTION]
    tokens = conversation.first(messages).tolist()
    same(tokens)
    turn = conversation.parse([*ids(made, CALLS[version]), 1])
    (call,) = turn.calls
    assert (call.name, call.arguments, len(call.id)) == ("add", {"a": 3}, 9)
    following = conversation.after(messages, turn, [result("7", call.id)])
    assert isinstance(following, Given)
    messages = [*messages, turn.message, result("7", call.id)]
    tokens = joined(tokens, ids(made, CALLS[version]), [1], following.tokens)
    same(tokens)
    turn = conversation.parse([*ids(made, "It is 7"), 1])
    following = conversation.after(messages, turn, [user("And 5?")])
    messages = [*messages, turn.message, user("And 5?")]
    if STABLE[version]:
        assert isinstance(following, Given)
        same(joined(tokens, ids(made, "It is 7"), [1], following.tokens))
    else:
        assert isinstance(following, NewSequence)
        same(following.prompt)
