"""Make the conversation of a run from its tokenizer, and prove it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from rlboost_jax.chat.conversation import Conversation, Tools
from rlboost_jax.chat.formats.choice import ToolFormat, detected, parser_of
from rlboost_jax.chat.habits import examined
from rlboost_jax.chat.octets import ByteConversation
from rlboost_jax.chat.reading import TurnReader
from rlboost_jax.chat.rendering import Renderer
from rlboost_jax.chat.templated import TemplateConversation, Unstable
from rlboost_jax.chat.thinking import Thinking, is_open, marks_of
from rlboost_jax.data.tokenizers import (
    ByteTokenizer,
    ChatRefused,
    HuggingFaceTokenizer,
    Tokenizer,
)
from rlboost_jax.settings.errors import ConfigError


def conversation_of(
    tokenizer: Tokenizer,
    *,
    tools: Tools = (),
    tool_format: Literal["auto"] | ToolFormat = "auto",
    thinking: Thinking = "keep",
    unstable: Unstable = "refuse",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Conversation:
    """The conversation of a run.

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
    stops = {stop: tokenizer.text([stop]) for stop in tokenizer.stop_ids}
    renderer = Renderer(tokenizer=tokenizer, options=options)
    try:
        template = examined(renderer, tuple(stops.values()), tools)
    except ChatRefused as error:
        raise ConfigError(f"the chat template cannot be used for conversations: {error}") from None
    form, why = detected(tokenizer.template, tuple(tokenizer.added))
    if tool_format != "auto":
        form, why = tool_format, "environment.tool_format"
    marks = marks_of(tokenizer.template)
    reader = TurnReader(
        tokenizer.text,
        stop_ids=tokenizer.stop_ids,
        special=renderer.special,
        parser=parser_of(form),
        tools=tools,
        marks=marks,
        opened=is_open(template.habits.header + template.habits.prefill, marks),
    )
    return TemplateConversation(
        template,
        stops=stops,
        reader=reader,
        tools=tools,
        tool_format=form,
        thinking=thinking,
        unstable=unstable,
        notes=(f"tool calls are read as {form}: {why}",),
    )
