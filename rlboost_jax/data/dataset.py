"""Exercises from a data set: its questions, judged by the run's reward functions."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.data.columns import unused_columns, value_at
from rlboost_jax.data.conversations import reads, report_beside
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.exercises import AskGroup, MixtureSource, Prompt, Tokens, Verdicts
from rlboost_jax.data.id_range import about_ids, ids_without_row
from rlboost_jax.data.questions import (
    ANSWER,
    Question,
    messages_of,
    needed_columns,
    prompt_columns,
    prompt_text,
    reward_columns,
    tools_of,
    uses_chat,
)
from rlboost_jax.data.row import Rows
from rlboost_jax.data.selection import (
    ALSO_HELD_OUT,
    Selection,
    Skipped,
    by_hash,
    indices,
    select,
    selection_digest,
    split,
    without,
)
from rlboost_jax.data.tokenizer_check import check_belongs
from rlboost_jax.data.tokenizers import Tokenizer, open_tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.judge import Judge
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.rewards.special_tokens import kept_ids, unseen_lines
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.sequences.shared_limits import MAX_STOP_IDS
from rlboost_jax.settings.column_names import shown_as
from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.run_config import RunConfig

log: Final = logging.getLogger(__name__)
DATA_SOURCE: Final = "data_source"  # what rewards call the name of a mixture's data set


class Dataset:
    """`Exercises` of `config.data`. Making one reads every row once.

    Args:
        rows_of: opens a source, as `open_rows` does.
        source: that it is of a mixture; None: it is alone.
        judge_of: makes who judges, of reward functions and columns.

    Raises:
        ConfigError: whatever is wrong with data, tokenizer or reward functions.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        rows_of: Callable[..., Rows] = open_rows,
        source: MixtureSource | None = None,
        judge_of: Callable[[Sequence[RewardConfig], Sequence[str]], Judge] | None = None,
    ) -> None:
        data, functions = resolved(run)
        self.name = data.preset or data.source
        self._data, self._source = data, source
        self.tokenizer = open_tokenizer(data)
        self.stop_ids = self.tokenizer.stop_ids
        self.stops = self.tokenizer.stop_strings.table
        rows = run.model.vocab_size
        without_row = ids_without_row(
            data.tokenizer, self.tokenizer.vocab_size, self.stop_ids, run.model
        )
        _check_stops(data.tokenizer, self.stop_ids)
        _check_options(data, self.tokenizer)
        self._kept = kept_ids(run.rewards.special_tokens, self.tokenizer.special, data.tokenizer)
        for line in unseen_lines(functions, self.tokenizer.special, self._kept):
            log.warning("%s", line)
        check_belongs(self.tokenizer, data, run.model.source)
        limit = data.max_prompt_tokens or run.engine.max_prompt_tokens

        def opened(source: str, *, subset: str, split: str) -> Rows:
            columns = needed_columns(data)
            return rows_of(source, data.format, subset=subset, split=split, columns=columns)

        self._rows = opened(data.source, subset=data.subset, split=data.split)
        selected = functools.partial(
            select, data=data, tokenizer=self.tokenizer, max_prompt_tokens=limit, vocab_size=rows
        )
        selection = selected(self._rows)
        own_place = bool(data.heldout_source or data.heldout_split)
        if own_place:
            with _naming_heldout(data):
                self._heldout_rows = opened(
                    data.heldout_source or data.source,
                    subset=data.heldout_subset if data.heldout_source else data.subset,
                    split=data.heldout_split,
                )
                aside = selected(self._heldout_rows)
            heldout = by_hash(aside.usable)
            train, overlap = without(selection.usable, heldout)
            if overlap:
                selection.skipped[ALSO_HELD_OUT] = Skipped(rows=overlap)
        else:
            self._heldout_rows, aside = self._rows, Selection(usable=())
            train, heldout = split(selection.usable, data.heldout_share)
        if data.heldout_share < 1:  # else it is only evaluated
            _check_train(data, len(self._rows), selection, len(train))
        if run.evaluation.every_steps and not heldout:
            with _naming_heldout(data):
                raise _nothing_held_out(data, len(self._heldout_rows), aside)
        self._train, self._heldout = indices(train), indices(heldout)
        self._train_keys = np.array([entry.key for entry in train], np.uint64)
        self.heldout_keys = frozenset(entry.key for entry in heldout)
        unused = unused_columns(needed_columns(data), self._rows.names())
        report_beside(unused)
        self.record: Mapping[str, Any] = {
            "source": data.source,
            "rows": len(self._rows),
            "train": len(train),
            "heldout": len(heldout),
            "left_out": _left_out(selection),
            "heldout_left_out": _left_out(aside),
            "columns_unused": unused,
            "prompt_tokens_max": max((e.num_tokens for e in (*train, *heldout)), default=0),
            "stop_ids": list(self.stop_ids),
            "stop_strings": list(self.tokenizer.stop_strings.strings),
            "notes": [about_ids(data.tokenizer, rows + without_row, rows)] if without_row else [],
            "digest": selection_digest(train, heldout),
        }
        self._functions = bool(functions)
        columns = [*map(shown_as, data.reward_columns), *([ANSWER] if data.answer_column else [])]
        if source and DATA_SOURCE not in columns:
            columns.append(DATA_SOURCE)
        if judge_of:
            self._judge = judge_of(functions, columns)
        else:
            self._judge = Judge(functions, run.rewards, columns=columns, seed=run.seed)

    def leave_out(self, keys: Iterable[int]) -> None:
        """Exclude questions from training that another data set of the mixture holds out.

        Args:
            keys: of questions, as `heldout_keys` has them.

        Raises:
            ConfigError: nothing is left.
        """
        keep = ~np.isin(self._train_keys, np.array(sorted(keys), np.uint64))
        overlap = len(keep) - int(keep.sum())
        self._train, self._train_keys = self._train[keep], self._train_keys[keep]
        if not overlap:
            return
        if not len(self._train):
            raise ConfigError("all of its questions are held out in the mixture; name other rows")
        left_out = dict(self.record["left_out"])
        before = left_out.get(ALSO_HELD_OUT, {"rows": 0, "first": ""})
        left_out[ALSO_HELD_OUT] = {**before, "rows": before["rows"] + overlap}
        self.record = {**self.record, "train": len(self._train), "left_out": left_out}

    def train(self, seed: int) -> "Questions":
        return self._questions(self._rows, self._train)

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        chosen = self._heldout[:count]
        questions = self._questions(self._heldout_rows, chosen)
        return tuple(questions[index] for index in range(len(chosen)))

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        return self._judge.ask(self._job(prompt, response_tokens))

    @property
    def judges(self) -> bool:
        """Whether there are reward functions."""
        return self._functions

    @property
    def ask_group(self) -> AskGroup | None:
        return self.judge_group if self._judge.sees_groups else None

    def text(self, tokens: ArrayLike) -> str:
        return self.tokenizer.text(tokens)

    def close(self) -> None:
        self._judge.close()

    def judge_group(
        self, prompt: Prompt, responses: Sequence[Tokens], alone: Sequence[Future[Verdict]], /
    ) -> Future[Verdicts]:
        """Judge a group, see `Exercises.ask_group`."""
        return self._judge.ask_group([self._job(prompt, each) for each in responses], alone)

    def _questions(self, rows: Rows, chosen: NDArray[np.int64]) -> "Questions":
        return Questions(rows, chosen, self._data, self.tokenizer, self._source)

    def _job(self, prompt: Prompt, response_tokens: Tokens) -> RewardJob:
        question: Question = prompt.problem
        ids = tuple(np.asarray(response_tokens).tolist())
        response = RewardResponse(
            completion=self.tokenizer.stop_strings.before(
                ids, functools.partial(self.tokenizer.decode, keep=self._kept)
            ),
            completion_ids=ids,
            finished=stopped(ids, self.stop_ids, self.stops),
        )
        return RewardJob(
            prompt=question.prompt, responses=(response,), columns=dict(question.columns)
        )


class Questions:
    """Chosen rows as prompts: Grain's random-access source."""

    def __init__(
        self,
        rows: Rows,
        chosen: NDArray[np.int64],
        data: DataConfig,
        tokenizer: Tokenizer,
        source: MixtureSource | None = None,
    ) -> None:
        self._rows, self._chosen = rows, chosen
        self._data, self._tokenizer, self._source = data, tokenizer, source

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: SupportsIndex) -> Prompt:
        row_index = int(self._chosen[int(index)])
        row, data = self._rows[row_index], self._data
        text = prompt_text(messages_of(row, data), data, self._tokenizer, tools_of(row, data))
        (ids,) = self._tokenizer.encode([text], chat=uses_chat(data, self._tokenizer))
        columns = reward_columns(row, data)
        if self._source:
            columns.setdefault(DATA_SOURCE, self._source.name)
        shown = {shown_as(name): value_at(row, name) for name in prompt_columns(data)}
        example = {**shown, **columns}
        question = Question(row=row_index, prompt=text, columns=columns, example=example)
        return Prompt(tokens=np.asarray(ids, np.int32), problem=question, source=self._source)


@contextlib.contextmanager
def _naming_heldout(data: DataConfig) -> Iterator[None]:
    """Context that adds the settings of held-out rows to errors about them."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace("data.split", "data.heldout_split")
        if data.heldout_source:
            for name in ("source", "subset"):
                text = text.replace(f"data.{name}", f"data.heldout_{name}")
        raise ConfigError(text) from None


def _left_out(selection: Selection) -> dict[str, dict[str, Any]]:
    return {
        reason: {"rows": skipped.rows, "first": skipped.example}
        for reason, skipped in sorted(selection.skipped.items())
    }


def _check_stops(name: str, stop_ids: Sequence[int]) -> None:
    """Raise ConfigError if an engine has no room for this many stop ids."""
    if len(stop_ids) > MAX_STOP_IDS:
        raise ConfigError(
            f"{name!r} and data.stop_ids have {len(stop_ids)} ids that end a response, "
            f"and {MAX_STOP_IDS} are possible; name fewer"
        )


def _check_options(data: DataConfig, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for an option that no chat template reads."""
    for name in data.chat_options:
        if not uses_chat(data, tokenizer):
            raise ConfigError(
                f"data.chat_options has {name!r}, and prompts are no chats; leave it empty, or set "
                "data.chat_template"
            )
        if not reads(tokenizer.template, name):
            raise ConfigError(
                f"data.chat_options has {name!r}, which the chat template does not name; take it "
                "out, or write it as the template does"
            )


def _check_train(data: DataConfig, num_rows: int, selection: Selection, train: int) -> None:
    """Raise ConfigError if no row is left to train on."""
    if not train:
        raise ConfigError(
            f"data.source {data.source!r}: no row of {num_rows} is left to train on"
            + _reasons(selection)
        )


def _nothing_held_out(data: DataConfig, num_rows: int, aside: Selection) -> ConfigError:
    if data.heldout_source or data.heldout_split:
        return ConfigError(
            f"data.source {data.heldout_source or data.source!r}: no row of {num_rows} is left to "
            "evaluate on" + _reasons(aside)
        )
    return ConfigError(
        f"data.source {data.source!r}: no row of {num_rows} is held out; raise "
        "data.heldout_share, or set evaluation.every_steps to 0"
    )


def _reasons(selection: Selection) -> str:
    reasons = "; ".join(
        f"{skipped.rows} {reason} (first: {skipped.example})" if skipped.example else reason
        for reason, skipped in selection.skipped.items()
    )
    return f": {reasons}" if reasons else ""
