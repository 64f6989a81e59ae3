"""One rule for thinking: turns stay as they were sampled, or a new sequence is without it."""

import pytest

from rlboost_jax.chat.conversation import Given, NewSequence
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.chat.thinking import KNOWN, THINK, is_open, marks_of, split
from rlboost_jax.platform.mistakes import ConfigError
from tests.chat.conftest import ADD
from tests.chat.test_conversation import CALL, QUESTION, ids, result, user

THOUGHT = "<think>\nThree and four.\n</think>\n\n"


@pytest.mark.parametrize(
    ("text", "opened", "thinking", "rest"),
    [
        ("It is 7.", False, "", "It is 7."),
        ("<think>\nso\n</think>\n\nIt is 7.", False, "so", "It is 7."),
        ("so\n</think>\n\nIt is 7.", True, "so", "It is 7."),
        ("so\n</think>\n\nIt is 7.", False, "so", "It is 7."),  # opened by nobody
        ("and so on", True, "and so on", ""),
        ("<think>and so on", False, "and so on", ""),
        ("<think>a</think>1<think>b</think>2", False, "a\nb", "12"),
        ("<think></think>7", False, "", "7"),
        ("<think>once more</think>7", True, "once more", "7"),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
def test_thinking_is_taken_out_of_a_turn(text, opened, thinking, rest):
    assert split(text, THINK, opened=opened) == (thinking, rest)


@pytest.mark.parametrize("marks", KNOWN)
def test_marks_are_those_that_a_template_names(marks):
    assert marks_of(f"{{{{ '{marks.open}x{marks.close}' }}}}") == marks
    assert is_open(f"assistant\n{marks.open}\n", marks)
    assert not is_open(f"assistant\n{marks.open}\n\n{marks.close}\n\n", marks)


@pytest.mark.parametrize(
    "garbage", ["<think>", "</think>", "<think></think>", "<think", "x<think>y</think>", "<", " "]
)
def test_degenerate_turns_take_linear_time(garbage):
    """A quadratic way would take minutes."""
    for opened in (False, True):
        thinking, rest = split(garbage * (400_000 // len(garbage)), THINK, opened=opened)
        assert len(thinking) + len(rest) <= 400_000


def test_kept_thinking_is_in_the_prompt_as_it_was_sampled(talk, tokenizer_of):
    """Though the template leaves it out of turns before the last question."""
    tokenizer, conversation = tokenizer_of("thinking"), talk("thinking", (ADD,))
    assert "thinking stays in the prompt" in " ".join(conversation.notes)
    turn = conversation.parse(ids(tokenizer, f"{THOUGHT}It is 7.<|im_end|>"))
    assert (turn.thinking, turn.text) == ("Three and four.", "It is 7.")
    following = conversation.after([QUESTION], turn, [user("And 5?")])
    assert isinstance(following, Given)
    assert tokenizer.text(following.tokens) == (
        "\n<|im_start|>user\nAnd 5?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_follows_a_turn_is_the_same_with_thinking_and_without(talk, tokenizer_of):
    """Which is why turns may stay: nothing between them depends on it."""
    tokenizer, conversation = tokenizer_of("thinking"), talk("thinking", (ADD,))
    turns = [conversation.parse(ids(tokenizer, f"{t}7<|im_end|>")) for t in ("", THOUGHT)]
    for new in ([user("And 5?")], [result("12")], [result("12"), result("13")]):
        with_it, without = (conversation.after([QUESTION], turn, new).tokens for turn in turns)
        assert with_it.tolist() == without.tolist()


def test_dropped_thinking_begins_a_new_sequence_where_the_template_leaves_it_out(
    talk, tokenizer_of
):
    tokenizer, conversation = tokenizer_of("thinking"), talk("thinking", (ADD,), thinking="drop")
    calls = conversation.parse(ids(tokenizer, f"{THOUGHT}{CALL}<|im_end|>"))
    messages = [QUESTION]
    following = conversation.after(messages, calls, [result("7")])
    assert isinstance(following, Given), "it stays while tools answer"

    messages += [calls.message, result("7")]
    answer = conversation.parse(ids(tokenizer, "<think>\nDone.\n</think>\n\nSeven<|im_end|>"))
    anew = conversation.after(messages, answer, [user("And 5?")])
    assert isinstance(anew, NewSequence) and anew.reason == "thinking of earlier turns is dropped"
    messages += [answer.message, user("And 5?")]
    text = tokenizer.text(anew.prompt)
    assert "Three and four." not in text and "Done." not in text and "Seven<|im_end|>" in text
    assert text == tokenizer._tokenizer.apply_chat_template(
        messages, tools=[ADD], add_generation_prompt=True, tokenize=False
    )
    assert 0 < anew.retokenised < len(anew.prompt)

    plain = conversation.parse(ids(tokenizer, "Twelve<|im_end|>"))
    following = conversation.after(messages, plain, [user("And 6?")])
    assert isinstance(following, Given), "there is nothing left to drop"


def test_a_model_that_is_asked_not_to_think(tokenizer_of):
    """Empty marks are given to each turn, and stay in the prompt."""
    tokenizer = tokenizer_of("thinking")
    conversation = conversation_of(tokenizer, tools=(ADD,), options={"enable_thinking": False})
    empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizer.text(conversation.first([QUESTION])).endswith(empty)
    turn = conversation.parse(ids(tokenizer, "7<|im_end|>"))
    assert (turn.thinking, turn.text) == ("", "7")
    following = conversation.after([QUESTION], turn, [user("And 5?")])
    assert isinstance(following, Given) and tokenizer.text(following.tokens).endswith(empty)


def test_an_option_that_the_template_does_not_name_is_refused(tokenizer_of):
    """It would change nothing, and nobody would say so."""
    with pytest.raises(ConfigError, match=r"template_options has 'enable_thinkin', which the chat"):
        conversation_of(tokenizer_of("thinking"), options={"enable_thinkin": False})


def test_thinking_that_the_prompt_opened(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("prefilled"), talk("prefilled")
    assert tokenizer.text(conversation.first([QUESTION])).endswith("<|Assistant|><think>\n")
    turn = conversation.parse(ids(tokenizer, "so\n</think>\n\n7<|eos|>"))
    assert (turn.thinking, turn.text) == ("so", "7")
    cut = conversation.parse(ids(tokenizer, "so and so"))
    assert (cut.thinking, cut.text, cut.stop) == ("so and so", "", None)
    following = conversation.after([QUESTION], cut, [user("And?")])
    assert tokenizer.text(following.tokens) == "<|eos|><|User|>And?<|Assistant|><think>\n"
