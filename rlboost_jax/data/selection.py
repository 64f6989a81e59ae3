"""Selection of rows: which are trained on, held out, or left out and why.

Everything is decided before the first step, by one pass over all rows, so that prompt i is a
function of the configuration and the seed and nothing has to be saved. Held out is a share of
the rows by a hash of the question: the same question is on the same side in every run, however
often it is there, in whatever order and whichever rows come to it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.data.conversations import fields_unread
from rlboost_jax.data.id_range import outside_row
from rlboost_jax.data.questions import (
    identity,
    kept,
    messages_of,
    prompt_text,
    reward_columns,
    tools_of,
    uses_chat,
)
from rlboost_jax.data.row import BrokenRow, Rows
from rlboost_jax.data.tokenizers import Tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.foreign_keys import report_unknown

BAD: Final = "unusable"  # cannot be read, lacks a value, has no prompt
FILTERED: Final = "filtered"
TOO_LONG: Final = "too long"
ALSO_HELD_OUT: Final = "also held out"

_BATCH: Final = 1024  # prompts tokenized together


@dataclass(kw_only=True)
class Skipped:
    """Rows left out for one reason, with the first as an example."""

    rows: int = 0
    example: str = ""

    def add(self, example: str) -> None:
        self.rows += 1
        self.example = self.example or example


class Usable(NamedTuple):
    row: int
    key: int  # 64 bits of the question's hash
    content: int  # the same of its token ids and of the columns that rewards get
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Usable and skipped rows of one source."""

    usable: tuple[Usable, ...]  # in the order of the rows
    skipped: dict[str, Skipped] = field(default_factory=dict)


def select(
    rows: Rows,
    data: DataConfig,
    tokenizer: Tokenizer,
    *,
    max_prompt_tokens: int,
    vocab_size: int,
) -> Selection:
    """Select all rows that can be used as questions.

    Args:
        vocab_size: the model has rows for the ids below it.

    Raises:
        ConfigError: a bad row, where `data.bad_rows` is "error".
    """
    skipped: dict[str, Skipped] = {}
    usable: list[Usable] = []

    def skip(row: int, reason: str, why: str = "") -> None:
        example = rows.place(row) + (f": {why}" if why else "")
        if reason == BAD and data.bad_rows == "error":
            raise ConfigError(f"data.source, {example}; mend it, or set data.bad_rows to 'skip'")
        skipped.setdefault(reason, Skipped()).add(example)

    chat, unread = uses_chat(data, tokenizer), set[str]()
    for batch in _batches(range(len(rows)), _BATCH):
        texts: list[str] = []
        keys: list[tuple[int, int, bytes]] = []
        for index in batch:
            try:
                row = rows[index]
                if not kept(row, data.filters):
                    skip(index, FILTERED)
                    continue
                messages = messages_of(row, data)
                tools = tools_of(row, data)
                columns = json.dumps(reward_columns(row, data), default=str).encode()
                texts.append(prompt_text(messages, data, tokenizer, tools))
                keys.append((index, _hash(identity(messages, tools)), columns))
                unread |= fields_unread(messages, tools, tokenizer.template if chat else "")
            except BrokenRow as error:
                skip(index, BAD, str(error))
        encoded = tokenizer.encode(texts, chat=chat)
        for (index, key, columns), ids in zip(keys, encoded, strict=True):
            if not ids:
                skip(index, BAD, "empty prompt")
            elif (outside := outside_row(ids, vocab_size)) is not None:
                token = f"token {outside} ({tokenizer.text([outside])!r})"
                skip(index, BAD, f"{token} has no row in the model: ids are below {vocab_size}")
            elif len(ids) > max_prompt_tokens:
                name = "data" if data.max_prompt_tokens else "engine"
                limit = f"{name}.max_prompt_tokens is {max_prompt_tokens}"
                skip(index, TOO_LONG, f"{len(ids)} tokens, {limit}")
            else:
                content = _hash(np.array(ids, np.int64).tobytes() + columns)
                usable.append(Usable(index, key, content, len(ids)))
    report_unknown(dict.fromkeys(sorted(unread), True), (), "the chat template")
    return Selection(usable=tuple(usable), skipped=skipped)


def split(usable: Sequence[Usable], share: float) -> tuple[list[Usable], list[Usable]]:
    """Split into (train, held out) by the hash of each question alone."""
    bound = int(share * 2**64)
    train = [entry for entry in usable if entry.key >= bound]
    return train, by_hash(entry for entry in usable if entry.key < bound)


def without(usable: Sequence[Usable], heldout: Iterable[Usable]) -> tuple[list[Usable], int]:
    """Rows whose question is not held out, and the number of the others."""
    keys = {entry.key for entry in heldout}
    train = [entry for entry in usable if entry.key not in keys]
    return train, len(usable) - len(train)


def by_hash(usable: Iterable[Usable]) -> list[Usable]:
    """Order that is independent of the rows' content, so that any first part is a fair sample."""
    return sorted(usable, key=lambda entry: (entry.key, entry.row))


def indices(entries: Sequence[Usable]) -> NDArray[np.int64]:
    return np.array([entry.row for entry in entries], np.int64)


def selection_digest(train: Sequence[Usable], heldout: Sequence[Usable]) -> str:
    """SHA-256 of the prompts in their order, and of the fields they are judged by."""
    digest = hashlib.sha256()
    for entries in (train, heldout):
        digest.update(f"{len(entries)}\n".encode())
        for entry in entries:
            digest.update(f"{entry.row} {entry.key} {entry.content}\n".encode())
    return digest.hexdigest()


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _batches(values: range, size: int) -> Iterator[range]:
    for first in range(0, len(values), size):
        yield values[first : first + size]
