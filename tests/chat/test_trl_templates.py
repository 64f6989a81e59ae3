"""The chat templates that the package trl ships: each is proved, or refused for a known reason.

They are skipped where trl is not installed; it needs none of what it requires for this:
`pip install --no-deps --target=DIR trl`, and DIR in PYTHONPATH.
"""

import importlib.util
from pathlib import Path

import pytest

from rlboost_jax.chat.conversation import UnstableTemplate
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.platform.mistakes import ConfigError
from tests.chat.conftest import ADD
from tests.chat.forms import CHATML_MARKS, Form

QWEN = Form("", **CHATML_MARKS)
LLAMA = Form("", ("<|eot_id|>",), ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"))
GEMMA = Form("", ("<end_of_turn>", "<eos>"), ("<start_of_turn>",))
GEMMA4 = Form(
    "",
    ("<turn|>", "<|tool_response>"),
    ("<|turn>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|channel>", "<channel|>"),
)
GLM = Form(
    "",
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
    ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
)
DEEPSEEK = Form(
    "",
    ("<\uff5cend\u2581of\u2581sentence\uff5c>",),
    ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
    ("<think>", "</think>"),
)
PHI = Form("", ("<|end|>", "<|endoftext|>"), ("<|user|>", "<|assistant|>", "<|system|>"))
GPT_OSS = Form(
    "", ("<|return|>", "<|call|>"), ("<|start|>", "<|message|>", "<|channel|>", "<|end|>")
)

# Refused with tools: the reason begins to differ there.
STABLE = {
    "qwen2_5": QWEN,
    "qwen3": QWEN,
    "qwen3_training": QWEN,
    "qwen3_instruct_2507": QWEN,
    "qwen3_5_think": QWEN,
    "qwen3_5_nothink": QWEN,
    "qwen3_8": QWEN,
    "nemotron_3_nano": QWEN,
    "llama3": LLAMA,
    "llama3_1": LLAMA,
    "llama3_2": LLAMA,
    "gemma": GEMMA,
    "gemma3": GEMMA,
    "glm4moe": GLM,
    "deepseek_r1_distill": DEEPSEEK,
    "phi3": PHI,
}
UNSTABLE = {
    "gemma4": (GEMMA4, "tool_response"),  # what a calling turn says stands after the results
    "deepseekv3": (DEEPSEEK, "tool\u2581call\u2581begin"),  # it forgets that a turn has begun
}


def shipped(name: str) -> str:
    found = importlib.util.find_spec("trl")  # which is not imported: it would want torch
    if found is None or not found.submodule_search_locations:
        pytest.skip("trl is not installed; see the head of this file")
    path = Path(next(iter(found.submodule_search_locations))) / "chat_templates" / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"this release of trl has no {path.name}")
    return path.read_text(encoding="utf-8")


def tokenizer(name, form, tokenizer_of):
    return tokenizer_of(Form(shipped(name), form.stops, form.special, form.added))


@pytest.mark.parametrize("name", STABLE)
def test_it_is_proved(name, tokenizer_of):
    made = tokenizer(name, STABLE[name], tokenizer_of)
    for tools in ((), (ADD,)):
        notes = " ".join(conversation_of(made, tools=tools).notes)
        assert "continued all turns of" in notes


def test_qwen3_without_thinking(tokenizer_of):
    made = tokenizer("qwen3", QWEN, tokenizer_of)
    conversation = conversation_of(made, tools=(ADD,), options={"enable_thinking": False})
    prompt = made.text(conversation.first([{"role": "user", "content": "3 + 4?"}]))
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["gptoss", "gptoss_training"])
def test_harmony_is_refused_by_its_name(name, tokenizer_of):
    made = tokenizer(name, GPT_OSS, tokenizer_of)
    with pytest.raises(ConfigError, match="gpt-oss's harmony format"):
        conversation_of(made)


@pytest.mark.parametrize("name", UNSTABLE)
def test_it_is_refused(name, tokenizer_of):
    form, reason = UNSTABLE[name]
    made = tokenizer(name, form, tokenizer_of)
    with pytest.raises(UnstableTemplate) as refusal:
        conversation_of(made, tools=(ADD,))
    assert reason in str(refusal.value)
    conversation = conversation_of(made, tools=(ADD,), unstable="new_sequence")
    assert "begins another sequence" in " ".join(conversation.notes)
