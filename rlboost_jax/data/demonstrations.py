"""Rows of `warmup.source` as sequences to imitate: prompts are given, responses are targets.

A row has a prompt and a response, or a conversation. Its text is what `data` makes prompts of: with
the chat template where the run uses one. Only the policy's own words are targets: an assistant's
turn with the token that ends it, which is added where the template does not write it. Some
templates change earlier turns when more follow (they leave out thinking, say): then the next turn
begins a new sequence.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.conversations import Message, Tools, all_messages_in
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.id_range import outside_row
from rlboost_jax.data.questions import (
    filled_at,
    messages_of,
    prompt_columns,
    template_columns,
    text_at,
    tools_of,
    uses_chat,
)
from rlboost_jax.data.row import BrokenRow, Row, Rows, TableRow, names_of_first
from rlboost_jax.data.selection import BAD, TOO_LONG, Skipped
from rlboost_jax.data.tokenizers import Tokenizer, open_tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.warmup_config import WarmupConfig

RESPONSE: Final = "response"
MESSAGES: Final = "messages"
_NAME_COLUMNS: Final = (
    "; name warmup.prompt_column and warmup.response_column, or warmup.messages_column"
)
_OF_DATA: Final = re.compile(r"\bdata\.(?=(?:source|format|subset|split)\b)")  # no file's name
_NOTHING: Final = np.zeros(0, np.int32)
Runs = tuple[NDArray[np.int32], ...]  # in turn given and to be said, as `lessons.taught` takes them


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """All rows that fit, in their order.

    Attributes:
        sequences: of all rows; a conversation may have several.
        lines: for a person: what was read, and each reason why a row was left out.
    """

    sequences: tuple[Runs, ...]
    lines: tuple[str, ...]


def demonstrations_of(
    run: RunConfig,
    *,
    rows_of: Callable[..., Rows] = open_rows,
    beat: Callable[[], None] = lambda: None,
) -> Demonstrations:
    """Read every row of `warmup.source` once.

    Args:
        rows_of: opens a source, as `open_rows` does.
        beat: called before each row: a sign of life.

    Raises:
        ConfigError: the source cannot be read or lacks a column, no row is left, or a row is of no
            use and `data.bad_rows` is "error".
    """
    data, tokenizer = _prompts_of(run), open_tokenizer(resolved(run)[0])
    try:
        rows, data = _opened(run.warmup, data, rows_of)
    except ConfigError as error:
        line = _OF_DATA.sub("warmup.", str(error))
        raise ConfigError(line + _NAME_COLUMNS * ("no column" in line)) from None
    options = run.environment.template_options if run.environment.name else data.chat_options
    reader = _Reader(data, run.warmup, tokenizer, options=options)
    sequences: list[Runs] = []
    skipped: dict[str, Skipped] = {}
    for index in range(len(rows)):
        beat()
        try:
            found = reader.sequences(rows[index])
            _check_ids(found, run.model.vocab_size, tokenizer)
            reason, why = BAD, ""
            if (longest := max(sum(map(len, runs)) for runs in found)) - 1 > run.row_tokens:
                reason, why = (
                    TOO_LONG,
                    (
                        f"{longest} tokens need {longest - 1} positions, a packed row has "
                        f"{run.row_tokens}: raise learner.row_tokens"
                    ),
                )
        except BrokenRow as error:
            reason, why = BAD, str(error)
        if not why:
            sequences.extend(found)
            continue
        example = f"{rows.place(index)}: {why}"
        if data.bad_rows == "error":
            raise ConfigError(f"warmup.source, {example}; or set data.bad_rows to 'skip'")
        skipped.setdefault(reason, Skipped()).add(example)
    lines = [
        f"  {count.rows:,} row{'s' * (count.rows != 1)} left out, {reason} (first: {count.example})"
        for reason, count in skipped.items()
    ]
    if not sequences:
        reasons = "".join(f":{line}" for line in lines)
        raise ConfigError(
            f"warmup.source {run.warmup.source!r}: no row of {len(rows)} is left to learn "
            f"from{reasons}" + _NAME_COLUMNS * ("no column" in reasons)
        )
    said = sum(len(turn) for runs in sequences for turn in runs[1::2])
    first = (
        f"{len(rows):,} rows of {run.warmup.source}: {len(sequences):,} sequences, {said:,} tokens "
        "to imitate"
    )
    return Demonstrations(sequences=tuple(sequences), lines=(first, *lines))


def _prompts_of(run: RunConfig) -> DataConfig:
    """Settings for prompts of the source: those of `data`, with the source's own columns."""
    data, warmup = resolved(run)[0], run.warmup
    if not warmup.prompt_column:
        return data
    return replace(data, prompt_column=warmup.prompt_column, template="", messages_column="")


def _opened(
    warmup: WarmupConfig, data: DataConfig, rows_of: Callable[..., Rows]
) -> tuple[Rows, DataConfig]:
    """Rows, and settings for reading them: without `messages_column`, prompt and response."""

    def opened(*columns: str) -> Rows:
        return rows_of(
            warmup.source,
            warmup.format,
            subset=warmup.subset,
            split=warmup.split,
            columns=frozenset(columns),
        )

    messages, found = warmup.messages_column, None
    if not (messages or warmup.prompt_column or warmup.response_column or warmup.response_template):
        found = opened()
        names = found.names()
        messages = MESSAGES if MESSAGES in names and RESPONSE not in names else ""
    if messages:
        data = replace(data, messages_column=messages, prompt_column="", template="")
        wanted: tuple[str, ...] = (messages,)
    else:
        data = replace(data, messages_column="")
        wanted = (*prompt_columns(data), *response_columns(warmup))
    if data.tools_column:
        wanted = (*wanted, data.tools_column)
    if found is not None and set(wanted) <= set(names_of_first(found)):  # not so in a table
        return found, data
    return opened(*wanted), data


def response_columns(warmup: WarmupConfig) -> tuple[str, ...]:
    if warmup.response_template:
        return template_columns(warmup.response_template)
    return (warmup.response_column or RESPONSE,)


class _Reader:
    """Converter of rows to sequences."""

    def __init__(
        self,
        data: DataConfig,
        warmup: WarmupConfig,
        tokenizer: Tokenizer,
        *,
        options: dict[str, object],
    ) -> None:
        """Args:
        data: with `messages_column` rows are conversations, else prompt and response.
        options: of the chat template.
        """
        self._data, self._warmup, self._tokenizer = data, warmup, tokenizer
        self._chat = uses_chat(data, tokenizer)
        self._options = options

    def sequences(self, row: Row) -> list[Runs]:
        """Convert a row to at least one sequence.

        Raises BrokenRow, or ConfigError without a template.
        """
        data = self._data
        if not data.messages_column:
            prompt, response = messages_of(row, data), self._response(row)
            if not self._chat:
                given = self._encoded(prompt[0]["content"])
                said = self._after(prompt[0]["content"], response)
                return [(given, np.append(said, np.int32(self._tokenizer.end_id)))]
            messages = [*prompt, {"role": "assistant", "content": response}]
        else:
            column = data.messages_column
            messages = all_messages_in(row[column], column, table=isinstance(row, TableRow))
            if data.system_prompt and messages and messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": data.system_prompt})
        turns = [index for index, each in enumerate(messages) if each["role"] == "assistant"]
        if not turns:
            raise BrokenRow("no turn of an assistant, which would be the target")
        if turns[0] == 0:
            raise BrokenRow("the assistant speaks first: there is no prompt")
        try:
            return list(self._conversation(messages, turns, tools_of(row, data)))
        except ChatRefused as error:
            raise BrokenRow(f"the chat template refuses it: {error}") from None

    def _response(self, row: Row) -> str:
        """Response of a row. Raises BrokenRow."""
        if self._warmup.response_template:
            return filled_at(row, self._warmup.response_template)
        (column,) = response_columns(self._warmup)
        return text_at(row, column)

    def _conversation(
        self, messages: Sequence[Message], turns: Sequence[int], tools: Tools
    ) -> Iterator[Runs]:
        runs: list[NDArray[np.int32]] = []
        written, rest = "", _NOTHING  # text of the runs; what of it follows the last turn's end
        for turn in turns:
            before = self._written(messages[:turn], tools, generation=True)
            through = self._written(messages[: turn + 1], tools, generation=False)
            if not through.startswith(before):
                raise BrokenRow(
                    f"the chat template does not write message {turn} after its own prompt for it"
                )
            if runs and not before.startswith(written):
                yield tuple(runs)
                runs, written, rest = [], "", _NOTHING
            given = np.concatenate([rest, self._after(written, before[len(written) :])])
            said = self._after(before, through[len(before) :])
            ends = np.flatnonzero(np.isin(said, self._tokenizer.stop_ids))
            if len(ends):
                said, rest = said[: ends[-1] + 1], said[ends[-1] + 1 :]
            else:
                said = np.append(said, np.int32(self._tokenizer.end_id))
            if runs and not len(given):  # the assistant speaks twice in a row
                runs[-1] = np.concatenate([runs[-1], said])
            else:
                runs += [given, said]
            written = through
            if not len(ends):  # the template goes on without the end token
                yield tuple(runs)
                runs, written, rest = [], "", _NOTHING
        if runs:
            yield tuple(runs)

    def _written(self, messages: Sequence[Message], tools: Tools, *, generation: bool) -> str:
        return self._tokenizer.chat(
            messages, tools=tools, generation=generation, options=self._options
        )

    def _encoded(self, text: str) -> NDArray[np.int32]:
        (ids,) = self._tokenizer.encode([text], chat=self._chat)
        if not ids:
            raise BrokenRow("empty prompt")
        return np.asarray(ids, np.int32)

    def _after(self, before: str, text: str) -> NDArray[np.int32]:
        """Token ids of a text in its place after another."""
        if not before:
            return self._encoded(text)
        whole, start = self._tokenizer.encode([before + text, before], chat=self._chat)
        if whole[: len(start)] != start:  # a token reaches over the seam, which no sampled one does
            (start,), line = self._tokenizer.encode(["\n"], chat=True), "\n"
            (whole,) = self._tokenizer.encode([line + text], chat=True)
        return np.asarray(whole[len(start) :], np.int32)


def _check_ids(sequences: Sequence[Runs], vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raise BrokenRow for a token id outside the model, or a turn without tokens."""
    for runs in sequences:
        for ids in runs:
            if not len(ids):
                raise BrokenRow("a turn without a token")
            if (outside := outside_row(ids.tolist(), vocab_size)) is not None:
                raise BrokenRow(
                    f"token {outside} ({tokenizer.text([outside])!r}) has no row in the model: "
                    f"ids are below {vocab_size}"
                )
