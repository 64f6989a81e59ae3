"""A row of a data set becomes a prompt's text and the columns that rewards see."""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlboost_jax.data.columns import filled, value_at
from rlboost_jax.data.row import BrokenRow, Row
from rlboost_jax.data.tokenizers import ChatRefused, Message, Tokenizer
from rlboost_jax.rewards.answers import FORMATS
from rlboost_jax.settings.column_names import path_of, shown_as
from rlboost_jax.settings.data import DataConfig, FilterConfig

ANSWER: Final = "answer"  # what rewards call the value of data.answer_column


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a response is judged by."""

    row: int  # in its source
    prompt: str  # as the policy reads it
    columns: Mapping[str, Any]
    # What an environment gets: `columns`, and those that a prompt is made of.
    example: Mapping[str, Any] = field(default_factory=dict)


def needed_columns(data: DataConfig) -> frozenset[str]:
    """Of a row, by everything that the configuration says about it."""
    return frozenset(
        {
            *prompt_columns(data),
            *([data.answer_column] if data.answer_column else []),
            *data.reward_columns,
            *(row_filter.column for row_filter in data.filters),
        }
    )


def prompt_columns(data: DataConfig) -> tuple[str, ...]:
    if data.messages_column:
        return (data.messages_column,)
    if data.template:
        fields = string.Formatter().parse(data.template)
        return tuple(path_of(name) for _, name, _, _ in fields if name)
    return (data.prompt_column or "prompt",)


def kept(row: Row, filters: Sequence[FilterConfig]) -> bool:
    """Whether a row passes every filter. Raises BrokenRow."""
    return all(_passes(row, row_filter) != row_filter.exclude for row_filter in filters)


def _passes(row: Row, row_filter: FilterConfig) -> bool:
    value = value_at(row, row_filter.column)
    if row_filter.one_of and value not in row_filter.one_of:
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


def _number(value: Any, column: str) -> int | float:
    """A number, also as CSV has it: in a text. Raises BrokenRow."""
    try:
        return value if isinstance(value, int | float) else float(str(value))
    except ValueError:
        raise BrokenRow(f"no number in column {column!r}: {str(value)[:40]!r}") from None


def messages_of(row: Row, data: DataConfig) -> list[Message]:
    """The conversation up to where the policy speaks.

    Assistants' messages at its end are the solution and left out. A prompt of text is one
    message of a user.

    Raises:
        BrokenRow: no value, no text, or no conversation.
    """
    if data.messages_column:
        messages = list(_conversation(_value(row, data.messages_column), data.messages_column))
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise BrokenRow("empty prompt")
    else:
        messages = [{"role": "user", "content": _text(row, data)}]
    if data.system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    if not any(m["content"].strip() for m in messages if m["role"] != "system"):
        raise BrokenRow("empty prompt")
    return messages


def prompt_text(messages: Sequence[Message], data: DataConfig, tokenizer: Tokenizer) -> str:
    """What the policy reads.

    Raises:
        BrokenRow: the chat template refuses these messages.
        ConfigError: a chat is needed and there is no template.
    """
    if uses_chat(data, tokenizer):
        try:
            return tokenizer.chat(messages)
        except ChatRefused as error:
            raise BrokenRow(f"the chat template refuses it: {error}") from None
    return messages[0]["content"]


def uses_chat(data: DataConfig, tokenizer: Tokenizer) -> bool:
    if data.chat == "auto":
        return tokenizer.has_chat or bool(data.messages_column or data.system_prompt)
    return data.chat == "always"


def identity(messages: Sequence[Message]) -> bytes:
    """The same for the same question, whatever tokenizer, template and system prompt."""
    said = [[m["role"], m["content"]] for m in messages if m["role"] != "system"]
    return json.dumps(said, ensure_ascii=True).encode()


def reward_columns(row: Row, data: DataConfig) -> dict[str, Any]:
    """What rewards get by name. Raises BrokenRow."""
    columns = {shown_as(name): _value(row, name) for name in data.reward_columns}
    if data.answer_column:
        columns[ANSWER] = answer_in(_value(row, data.answer_column), data.answer_format)
    return columns


def answer_in(value: Any, answer_format: str) -> Any:
    """The reference answer as it stands in its column. Raises BrokenRow where it does not.

    `after_hashes`: GSM8K's solutions end in `#### 1,234`; commas between digits are dropped.
    `boxed`: what the last `\\boxed{…}` of a solution holds, as in MATH.
    """
    if not answer_format:
        if value == "":
            raise BrokenRow("empty answer")
        return value
    answer = FORMATS[answer_format](str(value))
    if not answer:
        raise BrokenRow(f"no answer of format {answer_format!r} in {str(value)[-40:]!r}")
    return answer


def _text(row: Row, data: DataConfig) -> str:
    values = {name: _value(row, name) for name in prompt_columns(data)}
    if data.template:
        return filled(data.template, values)
    (value,) = values.values()
    if not isinstance(value, str):
        raise BrokenRow(f"the prompt is no text: {str(value)[:40]!r}")
    return value


def _conversation(value: Any, column: str) -> Sequence[Message]:
    fits = isinstance(value, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in value
    )
    if not fits:
        raise BrokenRow(f"{column!r} is no list of roles and contents: {str(value)[:40]!r}")
    return [{"role": m["role"], "content": m["content"]} for m in value]


def _value(row: Row, column: str) -> Any:
    value = value_at(row, column)
    if value is None:
        raise BrokenRow(f"no value in column {column!r}")
    _check_text(value, column)
    return value


def _check_text(value: Any, column: str) -> None:
    """Raise BrokenRow for half a character (a lone surrogate), which no bytes stand for."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise BrokenRow(f"half a character in column {column!r}") from None
    except RecursionError:
        raise BrokenRow(f"nested too deeply in column {column!r}") from None
