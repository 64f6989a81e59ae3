"""Choice of the format in which a model writes its calls, and a turn format that is unsupported."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, assert_never

from rlboost_jax.chat.formats import hermes, llama3, mistral, plain, tagged
from rlboost_jax.chat.formats.objects import TurnParts

CallFormat = Literal["hermes", "llama3", "mistral", "json", "tagged"]
Parser = Callable[[str, Sequence[Mapping[str, Any]]], TurnParts]
HARMONY: Final = "<|channel|>final<|message|>"


def parser_of(form: CallFormat) -> Parser:
    """Parser of a format: it takes the text of a turn and the tools."""
    match form:
        case "hermes":
            return lambda text, tools: hermes.parse(text)
        case "llama3":
            return lambda text, tools: llama3.parse(text)
        case "mistral":
            return lambda text, tools: mistral.parse(text)
        case "json":
            return lambda text, tools: plain.parse(text)
        case "tagged":
            return tagged.parse
        case _:
            assert_never(form)


def detected(template: str, special: Sequence[str]) -> tuple[CallFormat, str]:
    """Detect the format, and return it with the evidence.

    Args:
        template: the chat template's own text.
        special: the tokenizer's special and added tokens.
    """
    signs: tuple[tuple[str, CallFormat], ...] = (
        (mistral.CALLS, "mistral"),
        (tagged.FUNCTION, "tagged"),
        (tagged.KEY, "tagged"),
        (hermes.OPEN, "hermes"),
    )
    for sign, form in signs:
        if sign in template:
            return form, f"the chat template names {sign}"
    if llama3.PYTHON_TAG in special or llama3.PYTHON_TAG in template:
        return "llama3", f"the tokenizer has {llama3.PYTHON_TAG}"
    if '"parameters": ' in template:
        return "llama3", 'the chat template writes calls with "parameters"'
    for sign, form in signs:
        if sign in special:
            return form, f"the tokenizer has {sign}"
    return "hermes", "neither template nor tokenizer names a form of calls"


def unsupported(template: str) -> str:
    """Why turns of a chat template cannot be read or continued; "" if no reason is known.

    Harmony's stops would pass for those of other templates once `<|end|>` is one: each turn would
    then be over with its thinking, and calls would be looked for in another format.
    """
    if HARMONY not in template:
        return ""
    return (
        "the chat template is of gpt-oss's harmony format, which is not supported: a turn is "
        "several messages, and once more follows, its thinking is left out and <|return|> is "
        "written as <|end|>; choose another data.chat_template"
    )
