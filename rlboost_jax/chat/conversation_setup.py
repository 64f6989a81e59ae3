"""Construction of a run's conversation from its tokenizer, and its proof."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from rlboost_jax.chat import conversation as errors
from rlboost_jax.chat.byte_conversation import ByteConversation
from rlboost_jax.chat.conversation import Conversation, Tools
from rlboost_jax.chat.formats.format_choice import detected, parser_of, unsupported
from rlboost_jax.chat.rendering import Renderer
from rlboost_jax.chat.template_check import Proof, proved
from rlboost_jax.chat.template_conversation import TemplateConversation
from rlboost_jax.chat.template_probe import ASKS, Template, examined
from rlboost_jax.chat.thinking import is_open, marks_of
from rlboost_jax.chat.turn_reader import TurnReader
from rlboost_jax.data.conversations import reads
from rlboost_jax.data.tokenizers import (
    ByteTokenizer,
    ChatRefused,
    HuggingFaceTokenizer,
    Tokenizer,
)
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.environment_config import Thinking, ToolFormat, UnstableTemplate

TAKEN: Final = {
    "system": "system prompt",
    "tool": "results of tools",
    "results": "several results for one turn",
    "calls": "several calls in one turn",
}


def conversation_of(
    tokenizer: Tokenizer,
    *,
    tools: Tools = (),
    tool_format: ToolFormat = "auto",
    thinking: Thinking = "keep",
    unstable: UnstableTemplate = "refuse",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Conversation:
    """Build and prove the conversation of a run.

    Args:
        tools: that the policy may call, see `described`. What a template does with calls is
            tried only where there are any.
        thinking: "keep": a turn stays as it was sampled. "drop": where the template leaves
            thinking out of earlier turns, the episode goes on in a new sequence without it.
        unstable: what is done about a template that writes what came before in another way.
        options: of the template, such as {"enable_thinking": False}.

    Raises:
        ConfigError: there is no chat template, or it is of no use here.
        UnstableTemplate: see `unstable`.
    """
    if isinstance(tokenizer, ByteTokenizer):
        if tokenizer.has_chat:
            raise ConfigError(
                "the tokenizer 'bytes' has marks of its own for conversations; leave "
                "data.chat_template empty"
            )
        form = "hermes" if tool_format == "auto" else tool_format
        return ByteConversation(tokenizer, tools=tools, tool_format=form)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    if why := unsupported(tokenizer.template):
        raise ConfigError(why)
    for name in options:
        if not reads(tokenizer.template, name):
            raise ConfigError(
                f"environment.template_options has {name!r}, which the chat template does not "
                "name; take it out, or write it as the template does"
            )
    renderer = Renderer(tokenizer=tokenizer, options=options)
    stops = {stop: text for stop in tokenizer.stop_ids if (text := _mark(renderer, stop))}
    marks = marks_of(tokenizer.template)
    own = tokenizer.response_parser if tool_format == "auto" else None
    try:
        template = examined(renderer, tuple(stops.values()), tools, marks)
    except ChatRefused as error:
        raise ConfigError(f"the chat template cannot be used for conversations: {error}") from None
    form, sign = detected(tokenizer.template, tuple(tokenizer.added))
    if tool_format != "auto":
        form, sign = tool_format, "environment.tool_format"
    reader = TurnReader(
        tokenizer.text,
        stop_ids=tokenizer.stop_ids,
        stop_strings=tokenizer.stop_strings,
        special=renderer.special,
        parser=parser_of(form),
        marks=marks,
        opened=is_open(template.habits.header + template.habits.prefill, marks),
        calls_in_text=not template.habits.calls,
        response_parser=own,
        prompt_end=template.habits.header + template.habits.prefill,
    )
    conversation = TemplateConversation(
        template,
        stops=stops,
        stop_ids=tokenizer.stop_ids,
        stop_table=tokenizer.stop_strings.table,
        reader=reader,
        marks=marks,
        tools=tools,
        tool_format=form,
        thinking=thinking,
        unstable=unstable,
    )
    proof = proved(conversation, tools)
    if proof.unstable and unstable == "refuse":
        raise errors.UnstableTemplate(proof.unstable)
    conversation.notes = (
        f"tool calls are read as {form}: {sign}"
        + ("; first by the tokenizer's response_template" if own else ""),
        *_notes(conversation, proof, tools, thinking),
    )
    return conversation


def _mark(renderer: Renderer, token: int) -> str:
    """Text that encodes to this token wherever it stands; "" if there is none."""
    text = renderer.tokenizer.text([token])
    return text if text in renderer.control and renderer.encode(text).tolist() == [token] else ""


def _notes(
    conversation: TemplateConversation, proof: Proof, tools: Tools, thinking: Thinking
) -> Iterator[str]:
    """Notes on the template, a line each."""
    template = conversation.template
    if proof.unstable:
        yield "a turn that the chat template does not continue begins another sequence"
    else:
        yield f"the chat template continued all turns of {proof.conversations} conversations"
    if tools and not _names_tools(template, tools):
        yield "the chat template does not say what tools there are; the prompt has to"
    for what, why in template.refused.items():
        yield f"the chat template takes no {TAKEN[what]}: {why}"
    if proof.leaves_out_thinking and thinking == "keep":
        yield "thinking stays in the prompt, though the chat template leaves it out of old turns"


def _names_tools(template: Template, tools: Tools) -> bool:
    """Whether a prompt lists the tools."""
    with_tools, without = (template.renderer.text([ASKS], known) for known in (tools, ()))
    return with_tools != without
