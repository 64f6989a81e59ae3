"""Chat templates rendered as transformers renders them, to the byte, and within limits."""

import json
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.workers import template_child, template_process
from rlboost_jax.workers.template_child import DATE

__all__ = ["DATE", "ChatRefused", "TemplateTooCostly", "rendered", "values_of"]

_PROBE: Final = json.dumps({"messages": [{"role": "user", "content": "x"}]})


class ChatRefused(ValueError):
    """A chat template rejects these messages; the message has its reason."""


class TemplateTooCostly(ChatRefused):
    """A chat template exceeds a limit for these messages, though not for every conversation."""


def values_of(given: Mapping[str, Any]) -> str:
    """Encode a template's values as JSON.

    Raises:
        ChatRefused: something is no value of JSON.
    """
    try:
        # Where nothing is said of them, transformers says None.
        return json.dumps(
            {"tools": None, "documents": None, "add_generation_prompt": True, **given}
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatRefused(f"{type(error).__name__}: {error}") from None


def rendered(template: str, values: str, name: str) -> str:
    """Render a template with `messages`, `tools` and options.

    Args:
        values: see `values_of`.
        name: of the file or setting that the template is from.

    Raises:
        ConfigError: it is no template, goes beyond a limit with any conversation, or Jinja is not
            installed.
        ChatRefused: it refuses the messages.
        TemplateTooCostly: it goes beyond a limit with these.
    """
    answer = template_process.PROCESS.render(template, values)
    match answer.kind:
        case template_child.TEXT:
            return answer.text
        case template_child.REFUSED:
            raise ChatRefused(answer.text)
        case template_child.NO_TEMPLATE:
            raise ConfigError(f"{name} is no Jinja template: {answer.text}")
    line = f"{name} {answer.text}; {template_process.MAY}"
    if values == _PROBE or not template_process.PROCESS.render(template, _PROBE).kind:
        raise ConfigError(f"{line}: take another by data.chat_template")
    raise TemplateTooCostly(line)
