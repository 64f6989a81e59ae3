"""Conversion of a data set's row to a prompt's text and the columns that rewards see."""

import contextlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.columns import filled, value_at
from rlboost_jax.data.conversations import (
    Message,
    Tools,
    conversation_in,
    more_of,
    tools_in,
    with_text_arguments,
)
from rlboost_jax.data.row import BrokenRow, Row, TableRow
from rlboost_jax.data.tokenizers import Tokenizer
from rlboost_jax.rewards.answer_extraction import FORMATS
from rlboost_jax.rewards.references import absent
from rlboost_jax.settings.column_names import path_of, shown_as
from rlboost_jax.settings.data_config import DataConfig, FilterConfig
from rlboost_jax.settings.foreign_keys import warn_once

ANSWER: Final = "answer"  # what rewards call the value of data.answer_column


@dataclass(frozen=True, kw_only=True)
class Question:
    """Fields that a response is judged by."""

    row: int  # in its source
    prompt: str  # as the policy reads it
    columns: Mapping[str, Any]
    # What an environment gets: `columns`, and those that a prompt is made of.
    example: Mapping[str, Any] = field(default_factory=dict)


def needed_columns(data: DataConfig) -> frozenset[str]:
    """Columns of a row that any part of the configuration uses."""
    return frozenset(
        {
            *prompt_columns(data),
            *([data.answer_column] if data.answer_column else []),
            *([data.tools_column] if data.tools_column else []),
            *data.reward_columns,
            *(row_filter.column for row_filter in data.filters),
        }
    )


def prompt_columns(data: DataConfig) -> tuple[str, ...]:
    if data.messages_column:
        return (data.messages_column,)
    if data.template:
        return template_columns(data.template)
    return (data.prompt_column or "prompt",)


def template_columns(template: str) -> tuple[str, ...]:
    return tuple(path_of(name) for _, name, _, _ in string.Formatter().parse(template) if name)


def kept(row: Row, filters: Sequence[FilterConfig]) -> bool:
    """Whether a row passes every filter. Raises BrokenRow."""
    return all(_passes(row, row_filter) != row_filter.exclude for row_filter in filters)


def _passes(row: Row, row_filter: FilterConfig) -> bool:
    value = value_at(row, row_filter.column)
    if row_filter.one_of and value not in row_filter.one_of:
        _name_look_alike(value, row_filter)
        return False
    if row_filter.pattern and not re.search(
        row_filter.pattern, "" if value is None else str(value)
    ):
        return False
    low, high = row_filter.at_least, row_filter.at_most
    if low is None and high is None:
        return True
    if value is None:
        return False
    number = _number(value, row_filter.column)
    return (low is None or number >= low) and (high is None or number <= high)


def _name_look_alike(value: Any, row_filter: FilterConfig) -> None:
    """Log one warning where a filter's value and a row's differ in their type alone: 3 and '3'."""
    for wanted in row_filter.one_of:
        if isinstance(value, str | int | float) and str(value) == str(wanted):
            warn_once(
                f"data.filters: column {row_filter.column!r} has {value!r}, which is not the "
                f"{wanted!r} of one_of: {type(value).__name__} and {type(wanted).__name__} are "
                "never equal"
            )


def _number(value: Any, column: str) -> int | float:
    """A number, also as CSV has it: in a text. Raises BrokenRow."""
    try:
        return value if isinstance(value, int | float) else float(str(value))
    except ValueError:
        raise BrokenRow(f"no number in column {column!r}: {str(value)[:40]!r}") from None


def messages_of(row: Row, data: DataConfig) -> list[Message]:
    """Conversation up to where the policy speaks. A text prompt is one user message.

    Raises:
        BrokenRow: no value, no text, or no conversation.
    """
    if column := data.messages_column:
        value = _value(row, column)
        messages = conversation_in(value, column, table=isinstance(row, TableRow))
        if not messages:
            raise BrokenRow("empty prompt")
    else:
        messages = [{"role": "user", "content": _text(row, data)}]
    if data.system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    if not any(_says(message) for message in messages if message["role"] != "system"):
        raise BrokenRow("empty prompt")
    return messages


def _says(message: Message) -> bool:
    content = message["content"]
    return bool(content.strip() if isinstance(content, str) else content)


def tools_of(row: Row, data: DataConfig) -> Tools:
    """The functions that a row's prompt offers. Raises BrokenRow."""
    if not (column := data.tools_column):
        return ()
    value = value_at(row, column)
    check_text(value, column)
    return tools_in(value, column, table=isinstance(row, TableRow))


def prompt_text(
    messages: Sequence[Message], data: DataConfig, tokenizer: Tokenizer, tools: Tools = ()
) -> str:
    """Text of the prompt.

    Raises:
        BrokenRow: the chat template refuses these messages.
        ConfigError: a chat is needed and there is no template.
    """
    if not uses_chat(data, tokenizer):
        text: str = messages[0]["content"]
        return text
    try:
        return tokenizer.chat(messages, tools=tools, options=data.chat_options)
    except ChatRefused as error:
        refusal = BrokenRow(f"the chat template refuses it: {error}")
    if any("tool_calls" in message for message in messages):
        with contextlib.suppress(ChatRefused):
            as_text = with_text_arguments(messages)
            return tokenizer.chat(as_text, tools=tools, options=data.chat_options)
    raise refusal


def uses_chat(data: DataConfig, tokenizer: Tokenizer) -> bool:
    if data.chat == "auto":
        needed = data.messages_column or data.system_prompt or data.tools_column
        return tokenizer.has_chat or bool(needed)
    return data.chat == "always"


def identity(messages: Sequence[Message], tools: Tools = ()) -> bytes:
    """Key equal for the same question, whatever the tokenizer, template and system prompt."""
    said: list[Any] = [
        [m["role"], m["content"], *([more] if (more := more_of(m)) else [])]
        for m in messages
        if m["role"] != "system"
    ]
    if tools:
        said.append({"tools": tools})
    return json.dumps(said, ensure_ascii=True, default=str).encode()


def reward_columns(row: Row, data: DataConfig) -> dict[str, Any]:
    """Columns passed to rewards, by name. Raises BrokenRow."""
    columns = {shown_as(name): _value(row, name) for name in data.reward_columns}
    if data.answer_column:
        columns[ANSWER] = answer_in(_value(row, data.answer_column), data.answer_format)
    return columns


def answer_in(value: Any, answer_format: str) -> Any:
    """Extract the reference answer from its column. Raises BrokenRow if it is missing.

    `after_hashes`: GSM8K's solutions end in `#### 1,234`; commas between digits are dropped.
    `boxed`: what the last `\\boxed{…}` of a solution holds, as in MATH.
    """
    if value == [] or (isinstance(value, str) and not value.strip()):
        raise BrokenRow("empty answer")
    if not answer_format:
        return value
    if isinstance(value, list | tuple):  # each is as right as the others
        return [answer_in(each, answer_format) for each in value]
    answer = FORMATS[answer_format](str(value))
    if not answer:
        raise BrokenRow(f"no answer of format {answer_format!r} in {str(value)[-40:]!r}")
    return answer


def filled_at(row: Row, template: str) -> str:
    """Fill a template with a row's values. Raises BrokenRow if one is missing."""
    return filled(template, {name: _value(row, name) for name in template_columns(template)})


def text_at(row: Row, column: str) -> str:
    """The text of a column. Raises BrokenRow where it has none."""
    value = _value(row, column)
    if not isinstance(value, str):
        raise BrokenRow(f"column {column!r} is no text: {str(value)[:40]!r}")
    return value


def _text(row: Row, data: DataConfig) -> str:
    values = {name: _value(row, name) for name in prompt_columns(data)}
    if data.template:
        return filled(data.template, values)
    (value,) = values.values()
    if not isinstance(value, str):
        chat = isinstance(value, list) and value and isinstance(value[0], Mapping)
        advice = "; a conversation goes into data.messages_column" if chat else ""
        raise BrokenRow(f"the prompt is no text: {str(value)[:40]!r}{advice}")
    return value


def _value(row: Row, column: str) -> Any:
    value = value_at(row, column)
    if absent(value):
        raise BrokenRow(f"no value in column {column!r}")
    check_text(value, column)
    return value


def check_text(value: Any, column: str) -> None:
    """Raise BrokenRow for half a character (a lone surrogate), which no bytes stand for."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise BrokenRow(f"half a character in column {column!r}") from None
    except RecursionError:
        raise BrokenRow(f"nested too deeply in column {column!r}") from None
