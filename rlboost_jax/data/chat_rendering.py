"""Chat templates without transformers, rendered as it renders them: the same words, to the byte."""

import datetime
import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.settings.errors import ConfigError, install

DATE: Final = datetime.date(2024, 7, 26)  # what Llama's templates take where they have no clock


class ChatRefused(ValueError):
    """A chat template does not take these messages; it says why."""


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The text that a template makes of `messages`, `tools` and options.

    Raises:
        ConfigError: it is no template, or Jinja is not installed.
        ChatRefused: it refuses the messages.
    """
    compiled = _compiled(template)
    # Where nothing is said of them, transformers says None.
    usual = {"tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return str(compiled.render(**usual | dict(values)))
    except Exception as error:  # templates raise what they like
        raise ChatRefused(f"{type(error).__name__}: {error}") from None


@functools.cache
def _compiled(text: str) -> Any:
    """Sandboxed, since a template comes with somebody's model."""
    try:
        from jinja2 import TemplateError, TemplateSyntaxError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError(f"chat templates need Jinja; {install('hf')}") from None

    class Generation(Extension):
        """`{% generation %}` marks what an assistant says, and is no text."""

        tags = {"generation"}  # noqa: RUF012 (as its base declares it)

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), True)
            return body

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    try:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = _json  # Jinja's own sorts keys and escapes < > & '
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = DATE.strftime
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"data.chat_template is no Jinja template: line {error.lineno}: {error.message}"
        ) from None


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
