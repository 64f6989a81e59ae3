"""What follows a turn, token by token, against texts written by hand and transformers' own."""

import json

import numpy as np
import pytest

from rlboost_jax.chat.conversation import Given, NewSequence, UnstableTemplate
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.stop_strings import strings_in
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.endings import stopped
from tests.chat.conftest import ADD, BEGIN, opened, saved
from tests.chat.forms import CHATML_MARKS, FORMS, HARMONY, PLAIN, Form

QUESTION = {"role": "user", "content": "3 + 4?"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'


def user(content):
    return {"role": "user", "content": content}


def result(content, identity="abcdefghi"):
    return {"role": "tool", "name": "add", "tool_call_id": identity, "content": content}


def ids(tokenizer, text):
    (found,) = tokenizer.encode([text], chat=True)
    return found


def joined(*parts):
    return np.concatenate([np.asarray(part, np.int32) for part in parts]).tolist()


def test_a_conversation_by_hand(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("chatml"), talk("chatml")
    prompt = conversation.first([QUESTION])
    assert tokenizer.text(prompt) == (
        "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\n3 + 4?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    turn = conversation.parse(ids(tokenizer, f"I add.\n{CALL}<|im_end|>"))
    assert turn.text == "I add." and turn.stop == 1
    (call,) = turn.calls
    assert (call.name, call.arguments, call.problem) == ("add", {"a": 3, "b": 4}, "")
    following = conversation.after([QUESTION], turn, [result("7"), result("seven")])
    assert isinstance(following, Given)
    assert tokenizer.text(following.tokens) == (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\nseven\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ), "results share a block, and the line's end after the turn is not lost"


def test_a_turn_that_was_cut_off_gets_its_end(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("chatml"), talk("chatml")
    whole = conversation.parse(ids(tokenizer, "It is<|im_end|>"))
    cut = conversation.parse(ids(tokenizer, "It is"))
    assert (whole.stop, cut.stop) == (1, None)
    ended, given = (
        conversation.after([QUESTION], turn, [user("Go on.")]).tokens for turn in (whole, cut)
    )
    assert given.tolist() == [1, *ended.tolist()]


def test_a_turn_that_a_stop_string_ended_says_what_stands_before_it(tmp_path):
    """The template's own end follows it, as it follows one that was cut off."""
    tokenizer = opened(saved(tmp_path, FORMS["thinking"]), FORMS["thinking"])
    strings = ("</answer>", "\n\nuser", "</tool_call>")
    tokenizer.stop_strings = strings_in(tokenizer, strings)
    conversation = conversation_of(tokenizer, tools=(ADD,))
    assert conversation.stops == tokenizer.stop_strings.table
    for said, ends in (("It is.", "</answer>"), ("It is.", "\n\nuser"), ("", "</answer>")):
        sampled = ids(tokenizer, f"<think>\nso\n</think>\n\n{said}{ends}")
        turn = conversation.parse(sampled)
        assert (turn.text, turn.thinking, turn.stop) == (said, "so", None)
        assert stopped(sampled, conversation.stop_ids, conversation.stops)
        given = conversation.after([QUESTION], turn, [user("Go on.")]).tokens
        assert given.tolist()[0] == 1, "the end that was not sampled"
    whole = conversation.parse(ids(tokenizer, "It is.</answer<|im_end|>"))
    assert (whole.text, whole.stop) == ("It is.</answer", 1), "half of one ends nothing"


STABLE = [
    ("chatml", ()),
    ("chatml", (ADD,)),
    ("thinking", (ADD,)),
    ("plain", (ADD,)),
    ("prefilled", ()),
    ("llama3", (ADD,)),
    ("gemma", ()),
    ("mistral", ()),
    ("mistral_later", (ADD,)),
    ("glm", (ADD,)),
]


@pytest.mark.parametrize(("form", "tools"), STABLE)
@pytest.mark.parametrize("cut", [False, True])
def test_turn_by_turn_is_what_transformers_makes_of_the_whole(talk, tokenizer_of, form, tools, cut):
    """The second way is transformers' own, which knows nothing of turns."""
    tokenizer, conversation = tokenizer_of(form), talk(form, tools)
    said = ["One moment", "It is seven", "Because four follows three"]
    messages, tokens = [user("3 + 4? 数学")], []
    tokens = conversation.first(messages).tolist()
    for number, text in enumerate(said):
        turn = conversation.parse(ids(tokenizer, text))
        end = conversation.after(messages, turn, [user("x")]).tokens[0]
        spoken = ids(tokenizer, f" {text}" if form == "mistral" else text)
        if form == "glm":
            spoken = ids(tokenizer, f"\n{text}")
        turn = conversation.parse(spoken if cut else [*spoken, end])
        new = [user(f"and then {number}?\n")]
        following = conversation.after(messages, turn, new)
        messages = [*messages, {"role": "assistant", "content": text}, *new]
        tokens = joined(tokens, spoken if cut else [*spoken, end], following.tokens)
    theirs = tokenizer._tokenizer.apply_chat_template(
        messages,
        tools=list(tools) or None,
        add_generation_prompt=True,
        return_dict=False,
    )
    if form == "prefilled":  # thinking was opened for each turn, and stays in it
        opened_for_turns = ids(tokenizer, "<|Assistant|><think>\n")
        assert tokens[: len(conversation.first(messages[:1]))][-3:] == opened_for_turns[-3:]
        text = tokenizer.text(tokens).replace("<|Assistant|><think>\n", "<|Assistant|>")
        assert text == tokenizer.text(theirs).replace("<|Assistant|><think>\n", "<|Assistant|>")
    else:
        assert tokens == theirs


@pytest.mark.parametrize(("form", "tools"), [*STABLE, ("mistral", (ADD,))])
def test_each_form_is_proved_or_refused(talk, form, tools):
    if form == "mistral" and tools:
        with pytest.raises(UnstableTemplate, match=r"not prefix-stable: .*AVAILABLE_TOOLS"):
            talk(form, tools)
        return
    assert "continued all turns of 64 conversations" in " ".join(talk(form, tools).notes)


def test_tools_that_move_begin_a_new_sequence_and_results_do_not(talk, tokenizer_of):
    """Mistral's: only another question moves them."""
    tokenizer = tokenizer_of("mistral")
    conversation = talk("mistral", (ADD,), unstable="new_sequence")
    written = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3}, "id": "abcdefghi"}]</s>'
    turn = conversation.parse(ids(tokenizer, written))
    assert turn.calls[0].id == "abcdefghi"
    following = conversation.after([QUESTION], turn, [result("7")])
    assert tokenizer.text(following.tokens) == (
        '[TOOL_RESULTS] {"content": "7", "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    )
    messages = [QUESTION, turn.message, result("7")]
    answer = conversation.parse(ids(tokenizer, " 7</s>"))
    anew = conversation.after(messages, answer, [user("And 5?")])
    assert isinstance(anew, NewSequence) and "AVAILABLE_TOOLS" in anew.reason
    text = tokenizer.text(anew.prompt)
    assert text.startswith(f"{BEGIN}[INST] 3 + 4?[/INST][TOOL_CALLS]")
    assert text.endswith("[/AVAILABLE_TOOLS][INST] And 5?[/INST]")
    spoken = ids(tokenizer, written.removesuffix("</s>")) + ids(tokenizer, " 7")
    assert anew.retokenised == len(spoken)


ADDS = '{"a": 3, "b": [4, "[TOOL_CALLS]数学"]}'
CALLS = {  # of two turns, as models write them
    "chatml": [
        f'I add.\n<tool_call>\n{{"name": "add", "arguments": {ADDS}}}\n</tool_call>',
        '\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>' * 2,
    ],
    "mistral": [
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {ADDS}, "id": "abcdefghi"}}]',
        '[TOOL_CALLS] [{"name": "add", "arguments": {}, "id": "bcdefghij"}, '
        '{"name": "add", "arguments": {"a": 1}, "id": "cdefghijk"}]',
    ],
    "mistral_later": [
        f"I add.[TOOL_CALLS]add[ARGS]{ADDS}",
        '[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{"a": 1}',
    ],
}


@pytest.mark.parametrize("form", CALLS)
def test_calls_and_results_are_what_transformers_makes_of_the_whole(talk, tokenizer_of, form):
    """Nothing begins another sequence where one question is asked."""
    tokenizer = tokenizer_of(form)
    unstable = {"unstable": "new_sequence"} if form == "mistral" else {}
    conversation = talk(form, (ADD,), **unstable)
    messages = [QUESTION]
    tokens = conversation.first(messages).tolist()
    for written, count in zip(CALLS[form], (1, 2), strict=True):
        sampled = [*ids(tokenizer, written), 1]
        turn = conversation.parse(sampled)
        assert len(turn.calls) == count and not any(call.problem for call in turn.calls)
        new = [result(f"{place} 数", call.id) for place, call in enumerate(turn.calls)]
        following = conversation.after(messages, turn, new)
        assert isinstance(following, Given)
        messages += [turn.message, *new]
        tokens = joined(tokens, sampled, following.tokens)
    assert tokens == tokenizer._tokenizer.apply_chat_template(
        messages, tools=[ADD], add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize("stops", [("<|return|>", "<|call|>"), ("<|return|>", "<|end|>")])
@pytest.mark.parametrize("unstable", ["refuse", "new_sequence"])
def test_harmony_is_refused_in_a_line(tokenizer_of, stops, unstable):
    """Whatever ends a turn: with `<|end|>` it would pass for another format, thinking cut off."""
    tokenizer = tokenizer_of(Form(HARMONY, stops, ("<|start|>", "<|message|>", "<|channel|>")))
    with pytest.raises(ConfigError, match=r"harmony format, .* turn is several") as said:
        conversation_of(tokenizer, tools=(ADD,), unstable=unstable)
    assert "\n" not in str(said.value)


def test_another_end_of_llamas(talk, tokenizer_of):
    """`<|eom_id|>` is an end that the template writes elsewhere: no second one follows it."""
    tokenizer, conversation = tokenizer_of("llama3"), talk("llama3", (ADD,))
    call = '{"name": "add", "parameters": {"a": 3}}'
    for end in ("<|eot_id|>", "<|eom_id|>"):
        turn = conversation.parse(ids(tokenizer, call + end))
        following = conversation.after([QUESTION], turn, [result("7")])
        assert tokenizer.text(following.tokens) == (
            '<|start_header_id|>ipython<|end_header_id|>\n\n"7"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )


def test_an_end_that_the_template_does_not_know_gets_the_templates_own(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("chatml"), talk("chatml")
    turn = conversation.parse(ids(tokenizer, "It is<|endoftext|>"))
    following = conversation.after([QUESTION], turn, [user("Go on.")])
    assert tokenizer.text(following.tokens).startswith("<|im_end|>\n<|im_start|>user\nGo on.")


def test_the_next_roles_mark_ends_a_turn_of_glm(talk, tokenizer_of):
    tokenizer, conversation = tokenizer_of("glm"), talk("glm", (ADD,))
    call = "\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    texts = {}
    for end in ("<|observation|>", "<|user|>", ""):
        turn = conversation.parse(ids(tokenizer, call + end))
        assert turn.calls[0].arguments == {"a": 3}
        texts[end] = tokenizer.text(conversation.after([QUESTION], turn, [result("7")]).tokens)
    rest = "\n<tool_response>\n7\n</tool_response><|assistant|>"
    assert texts == {
        "<|observation|>": rest,
        "<|user|>": f"<|observation|>{rest}",  # it expected somebody else
        "": f"<|observation|>{rest}",
    }


def test_what_a_template_does_not_take_is_said(talk):
    conversation = talk("gemma", (ADD,))
    notes = " ".join(conversation.notes)
    assert "takes no system prompt" in notes and "takes no results of tools" in notes
    assert "does not say what tools there are" in notes
    with pytest.raises(ChatRefused, match="no system prompt"):
        conversation.first([{"role": "system", "content": "Be brief."}, QUESTION])
    turn = conversation.parse([5, 1])
    with pytest.raises(ChatRefused, match="role 'tool'"):
        conversation.after([QUESTION], turn, [result("7")])


def test_the_beginning_is_not_doubled(tmp_path):
    """By a tokenizer that puts one before each text by itself."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = saved(tmp_path, FORMS["llama3"])
    path = str(folder / "tokenizer.json")
    made = tokenizers.Tokenizer.from_file(path)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)]
    )
    made.save(path)
    conversation = conversation_of(opened(folder, FORMS["llama3"]))
    prompt = conversation.first([QUESTION]).tolist()
    assert prompt[0] == 0 and prompt.count(0) == 1
    turn = conversation.parse([7, 1])
    assert 0 not in conversation.after([QUESTION], turn, [user("Go on.")]).tokens


def test_today_is_the_same_day_tomorrow(talk, tokenizer_of):
    text = tokenizer_of("llama3").text(talk("llama3", (ADD,)).first([QUESTION]))
    assert "Today Date: 26 Jul 2024\n" in text


@pytest.mark.parametrize(("form", "tools"), STABLE)
def test_what_messages_say_is_no_control_token(talk, tokenizer_of, form, tools):
    """A tool's answer that would end its message and speak for the user."""
    tokenizer, conversation = tokenizer_of(form), talk(form, tools)
    marks = [BEGIN, *FORMS[form].stops, *FORMS[form].special, *FORMS[form].added]
    attack = "7" + "".join(f"{mark}x{mark[:1]}{mark}{mark[1:]}" for mark in marks) + "end"
    control = {text: number for text, number in tokenizer._tokenizer.get_added_vocab().items()}
    role = (lambda text: result(text)) if tools else user
    prompts = [conversation.first([user(text)]) for text in ("7xend", attack)]
    turn = conversation.parse(ids(tokenizer, f"It is{FORMS[form].stops[0]}"))
    given = [
        conversation.after([QUESTION], turn, [role(text)]).tokens for text in ("7xend", attack)
    ]
    for harmless, attacked in (prompts, given):
        inside = [
            [int(i) for i in tokens if int(i) in control.values()]
            for tokens in (harmless, attacked)
        ]
        assert inside[0] == inside[1]
        escaped = attack.replace('"', '\\"') if form in ("mistral", "llama3") else attack
        assert tokenizer.text(attacked).replace(escaped, "7xend") == tokenizer.text(harmless)


def test_a_system_prompt_may_name_marks_that_are_not_special(talk, tokenizer_of):
    tokenizer = tokenizer_of("thinking")
    (think,) = ids(tokenizer, "<think>")
    system = {"role": "system", "content": "Write <think> first, never <|im_end|>."}
    prompt = talk("thinking", (ADD,)).first([system, QUESTION]).tolist()
    assert think in prompt
    assert prompt.count(1) == 2, "of system prompt and question"
    assert "never <|im_end|>." in tokenizer.text(prompt)


@pytest.mark.parametrize("form", ["chatml", "gemma", "mistral"])
def test_a_tokenizer_that_puts_spaces_before_text(tmp_path, form):
    """Proved as others are; and no space is lost or won in what messages say."""
    made = opened(saved(tmp_path, FORMS[form], spaces=True), FORMS[form])
    conversation = conversation_of(made)
    assert "continued all turns of 64" in " ".join(conversation.notes)
    attack = f"7{FORMS[form].stops[0]}x and{BEGIN}"
    prompt = conversation.first([user(attack)]).tolist()
    assert sum(token == 1 for token in prompt) == sum(
        token == 1 for token in conversation.first([user("7")])
    )
    assert attack in made.text(prompt)


def test_a_stop_that_is_part_of_text_is_followed_by_the_templates_own(tokenizer_of):
    """`data.stop_ids` may name any token."""
    tokenizer = tokenizer_of("chatml")
    (point,) = ids(tokenizer, ".")
    tokenizer = tokenizer_of("chatml", stop_ids=(1, 2, point))
    conversation = conversation_of(tokenizer)
    assert conversation.stop_ids == (1, 2, point)
    turn = conversation.parse(ids(tokenizer, "It is seven."))
    assert turn.stop == point
    following = conversation.after([QUESTION], turn, [user("Go on.")])
    assert tokenizer.text(following.tokens).startswith("<|im_end|>\n<|im_start|>user\nGo on.")


BROKEN = {
    "old turns are shortened": PLAIN.replace(
        "m.content", "(m.content if loop.last or m.role != 'assistant' else m.content[:12])"
    ),
    "old turns are cut to almost nothing": PLAIN.replace(
        "m.content", "(m.content if loop.last or m.role != 'assistant' else m.content[:3])"
    ),
    "messages are numbered from the end": PLAIN.replace(
        "m.role +", "m.role + (messages | length - loop.index0) | string +"
    ),
    "old results are left out": PLAIN.replace(
        "m.content",
        "('' if m.role == 'user' and loop.index0 + 3 < messages | length else m.content)",
    ),
    "a hint stands before the newest turn": PLAIN.replace(
        "assistant\\n' }}{% endif", "assistant\\nAnswer: ' }}{% endif"
    ),
    "the beginning depends on what was said": (
        "{% if 'answer' in (messages | selectattr('role', 'equalto', 'assistant')"
        " | map(attribute='content') | join) %}!{% endif %}" + PLAIN
    ),
    "a turn's text changes what follows it": PLAIN.replace(
        "'<|im_end|>\\n'", "('<|im_end|>\\n' if 'a' in m.content else '<|im_end|>')"
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_template_that_rewrites_the_past_is_refused(tokenizer_of, how):
    tokenizer = tokenizer_of(Form(BROKEN[how], **CHATML_MARKS))
    with pytest.raises(UnstableTemplate) as refusal:
        conversation_of(tokenizer, tools=(ADD,))
    text = str(refusal.value)
    assert " became " in text or "follows where it should be" in text
    assert 'environment.unstable_template to "new_sequence"' in text
    assert isinstance(refusal.value, ConfigError)


def test_a_tokenizer_whose_tokens_reach_across_the_end_of_a_turn_is_refused(tmp_path):
    """Its end mark is one token only where no letter stands before it."""
    folder = saved(tmp_path, FORMS["chatml"])
    made = json.loads((folder / "tokenizer.json").read_text())
    (mark,) = (token for token in made["added_tokens"] if token["content"] == "<|im_end|>")
    mark["single_word"] = True
    (folder / "tokenizer.json").write_text(json.dumps(made))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnstableTemplate, match=r"the tokens \[.*\] became \["):
        conversation_of(opened(folder, FORMS["chatml"]))


def test_a_turn_that_is_rewritten_begins_a_new_sequence(tokenizer_of):
    """The new one renders all messages; with `continues` turns are continued instead."""
    tokenizer = tokenizer_of(Form(BROKEN["old turns are shortened"], **CHATML_MARKS))
    conversation = conversation_of(tokenizer, tools=(ADD,), unstable="new_sequence")
    assert "begins another sequence" in " ".join(conversation.notes)
    messages = [user("3 + 4?")]
    short = conversation.parse(ids(tokenizer, "7<|im_end|>"))
    assert isinstance(conversation.after(messages, short, [user("Why?")]), Given)
    turn = conversation.parse(ids(tokenizer, "It is seven and so on<|im_end|>"))
    anew = conversation.after(messages, turn, [user("Why?")])
    assert isinstance(anew, NewSequence)
    whole = [*messages, turn.message, user("Why?")]
    assert tokenizer.text(anew.prompt) == tokenizer._tokenizer.apply_chat_template(
        whole, add_generation_prompt=True, tokenize=False
    )
    assert anew.retokenised == len(ids(tokenizer, "It is seven "))


def test_templates_of_no_use_are_refused(tokenizer_of):
    refuses = "{{ raise_exception('never') }}"
    with pytest.raises(ConfigError, match=r"cannot be used for conversations: .*never"):
        conversation_of(tokenizer_of(Form(refuses, **CHATML_MARKS)))
    endless = PLAIN.replace("<|im_end|>", "###")
    with pytest.raises(ConfigError, match=r"none of what ends a turn .*; set data.stop_ids"):
        conversation_of(tokenizer_of(Form(endless, **CHATML_MARKS)))
