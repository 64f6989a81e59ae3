"""The checks of `config.data` and `config.rewards`, before any of the data is read."""

import math
import re
import string
from collections.abc import Iterator, Sequence
from typing import Final

from rlboost_jax.sequences.shared_limits import MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS
from rlboost_jax.settings.column_names import is_field, shown_as
from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.data_presets import BUILT_IN_REWARDS, resolved
from rlboost_jax.settings.mixture_parts import OF_ENTRIES, parts_of
from rlboost_jax.settings.rewards_config import MOST_CONCURRENT, RewardConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT
from rlboost_jax.settings.warmup_config import WarmupConfig

CHAT_ALONE: Final = ("chat_template", "chat_options")
OF_SOURCE: Final = (  # of a warm-up
    *("format", "subset", "split", "prompt_column", "response_column", "response_template"),
    "messages_column",
)
SET_BY_RUN: Final = (  # of a chat template
    *("messages", "conversation", "tools", "chat_template", "tokenize", "add_generation_prompt"),
    *("return_dict", "return_tensors", "padding", "truncation", "max_length"),
)
_NAME: Final = re.compile(r"[\w.-]+")
GIVEN: Final = ("prompts", "completions", "completion_ids", "finished")  # to every reward
_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")


def dataset_mistakes(config: RunConfig) -> Iterator[str]:
    """A line per mistake in a run that trains on a data set, or on several."""
    if config.data.mixture:
        yield from _mixture(config)
        return
    data, rewards = resolved(config)
    if not data.source:
        yield "data.source is ''; name a file, a folder, a hub data set, or a data.preset"
    if not data.tokenizer:
        yield (
            "data.tokenizer is '', and so is model.source, which would have one; name a folder or "
            "hub name, or 'bytes'"
        )
    if config.warmup.generated:
        yield (
            f"warmup.max_updates is {config.warmup.max_updates}; a data set has no worked answers "
            "to warm up on: set it to 0, or name rows with responses in warmup.source"
        )
    if config.evaluation.every_steps and not (
        data.heldout_share or data.heldout_source or data.heldout_split
    ):
        yield (
            "data.heldout_share is 0, and neither data.heldout_source nor data.heldout_split says "
            "what to evaluate on; choose one of them, or set evaluation.every_steps to 0"
        )
    if data.heldout_subset and not data.heldout_source:
        yield (
            f"data.heldout_subset is {data.heldout_subset!r} without a data.heldout_source; name "
            "one, or set it to '' (a split of data.source is of data.subset)"
        )
    if data.max_prompt_tokens > config.engine.max_prompt_tokens:
        yield (
            f"data.max_prompt_tokens is {data.max_prompt_tokens}, a slot takes prompts of "
            f"{config.engine.max_prompt_tokens} (engine.max_prompt_tokens); lower it, or raise that"
        )
    size = config.model.vocab_size
    if not all(0 <= token < size for token in data.stop_ids):
        yield f"data.stop_ids is {data.stop_ids}; ids go from 0 to {size - 1} (model.vocab_size)"
    yield from stop_string_mistakes(data.stop_strings, "data.stop_strings")
    for name in ("tools_column", "chat_options"):
        if config.environment.name and (value := getattr(data, name)):
            yield (
                f"data.{name} is {value!r}, and the environment {config.environment.name!r} makes "
                "the prompts; leave it empty (environment.template_options has a template's)"
            )
    yield from _prompt(data)
    yield from _filters(data)
    if not rewards and not config.environment.name:  # which gives rewards itself
        yield "rewards.functions is (); name at least one, such as {'name': 'exact'}"
    if config.rewards.special_tokens and not rewards:
        yield (
            f"rewards.special_tokens is {config.rewards.special_tokens}, and there is no reward "
            "function to read them: name one in rewards.functions, or leave it empty"
        )
    for index, reward in enumerate(rewards):
        yield from (f"rewards.functions[{index}]: {line}" for line in _reward(reward))
    names = [reward.shown_as for reward in rewards]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"rewards.functions has {name!r} twice; give each a 'label' of its own"


def warmup_mistakes(config: RunConfig) -> Iterator[str]:
    """A line per mistake in what `config.warmup` says about its source."""
    warmup, default = config.warmup, WarmupConfig()
    if not config.num_steps and not warmup.any:
        yield (
            "num_steps is 0 and there is no supervised update: name rows with responses in "
            "warmup.source, or choose 1 step or more"
        )
    if not warmup.source:
        for name in OF_SOURCE:
            if (value := getattr(warmup, name)) != getattr(default, name):
                yield f"warmup.{name} is {value!r} without a warmup.source; name one"
        return
    if not resolved(config)[0].tokenizer or config.task.name not in (DATASET, ENVIRONMENT):
        yield (
            f"warmup.source is {warmup.source!r}, and task {config.task.name!r} has no text; set "
            "task.name to 'dataset' or 'environment', and data.tokenizer"
        )
    if warmup.messages_column:
        for name in ("prompt_column", "response_column", "response_template"):
            if value := getattr(warmup, name):
                yield (
                    f"warmup.messages_column is {warmup.messages_column!r} and warmup.{name} "
                    f"{value!r}; a row is a conversation, or prompt and response: keep one"
                )
    if warmup.response_column and warmup.response_template:
        yield (
            f"warmup.response_column ({warmup.response_column!r}) and warmup.response_template "
            f"({warmup.response_template!r}) each say what the response is; keep one"
        )
    yield from _template(warmup.response_template, "warmup.response_template")


def _mixture(config: RunConfig) -> Iterator[str]:
    default = DataConfig()
    for name in OF_ENTRIES:
        if (value := getattr(config.data, name)) != getattr(default, name):
            yield (
                f"data.{name} is {value!r} beside data.mixture, whose entries say what their rows "
                "are; put it there"
            )
    parts = parts_of(config)
    if not any(part.weight for part in parts):
        yield "data.mixture has no weight above 0; one data set at least is trained on"
    if config.evaluation.every_steps and not any(part.heldout_weight for part in parts):
        yield (
            "data.mixture has no heldout_weight above 0; give one, or set evaluation.every_steps "
            "to 0"
        )
    for place, part in enumerate(parts):
        entry = f"data.mixture[{place}]"
        for name in ("weight", "heldout_weight"):
            if not 0 <= (value := getattr(part, name)) < math.inf:
                yield f"{entry}: {name} is {value}; choose a number of at least 0"
        if not part.weight and not part.heldout_weight:
            yield f"{entry}: weight and heldout_weight are 0; take the entry out"
        elsewhere = ("heldout_source", "heldout_split")
        for name in elsewhere if not (part.weight and part.heldout_weight) else ():
            if value := getattr(part.run.data, name):
                why = "none is held out" if part.weight else "all rows of its source are held out"
                yield f"{entry}: {name} is {value!r}, and {why}; set it to ''"
        if not _NAME.fullmatch(part.name):
            yield (
                f"data.mixture[{place}]: name is {part.name!r}; give it one of letters, digits, "
                "'.', '_' and '-'"
            )
    names = [part.name for part in parts]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"data.mixture has {name!r} twice; give each a 'name' of its own"
    lines = [list(dataset_mistakes(part.run)) for part in parts]
    common = [line for line in lines[0] if all(line in others for others in lines)]
    yield from common
    for place, mistakes in enumerate(lines):
        yield from (f"data.mixture[{place}]: {line}" for line in mistakes if line not in common)


def leftovers(config: RunConfig) -> Iterator[str]:
    """Yield a line per data setting in a run whose task is generated."""
    for name, value in (
        ("data.preset", config.data.preset),
        ("data.source", config.data.source),
        ("data.mixture", ", ".join(part.name for part in parts_of(config))),
        ("rewards.functions", ", ".join(each.name for each in config.rewards.functions)),
        ("rewards.special_tokens", ", ".join(config.rewards.special_tokens)),
    ):
        if value:
            yield (
                f"{name} is {value!r}, and task {config.task.name!r} generates its own prompts and "
                "rewards; set task.name to 'dataset', or leave it empty"
            )
    if config.task.name == ENVIRONMENT and resolved(config)[0].tokenizer:
        yield from stop_string_mistakes(config.data.stop_strings, "data.stop_strings")
        return
    if config.data.stop_strings:
        yield (
            f"data.stop_strings is {config.data.stop_strings!r}, and task {config.task.name!r} "
            "has no text without a tokenizer; leave it empty"
            + ", or set data.tokenizer"
            * (config.task.name == ENVIRONMENT)
        )


def stop_string_mistakes(strings: Sequence[object], name: str) -> Iterator[str]:
    """A line per mistake in stop strings.

    Args:
        name: of the setting, or of where else they stand.
    """
    if len(strings) > MAX_STOP_STRINGS:
        yield f"{name} has {len(strings)} strings; the limit is {MAX_STOP_STRINGS}, name fewer"
    for text in strings:
        if not isinstance(text, str):
            yield f"{name} has {text!r}, which is no text; name texts, or set data.stop_ids"
        elif not text:
            yield f"{name} has '', which every response begins with; leave it out"
        elif _SURROGATE.search(text):
            yield f"{name} has {text!r}, half a character, which no token is; leave it out"
        elif (size := len(text.encode())) > MAX_STOP_STRING_BYTES:
            yield (
                f"{name} has {text[:20]!r}… of {size} bytes; the limit is "
                f"{MAX_STOP_STRING_BYTES}, name a shorter one"
            )


def _prompt(data: DataConfig) -> Iterator[str]:
    given = {
        name: value
        for name in ("messages_column", "prompt_column", "template")
        if (value := getattr(data, name))
    }
    if len(given) > 1:
        yield (
            f"{' and '.join(f'data.{name} ({value!r})' for name, value in given.items())} each say "
            "what the prompt is; keep one"
        )
    yield from _template(data.template, "data.template")
    taken = [*GIVEN, *(["answer"] if data.answer_column else [])]
    for column in data.reward_columns:
        name = shown_as(column)
        if name in taken:
            yield (
                f"data.reward_columns has {column!r}, and rewards know something else as {name!r} "
                f"({', '.join(taken)}); rename the column in the data"
            )
        taken.append(name)
    if data.answer_format and not data.answer_column:
        yield f"data.answer_format is {data.answer_format!r}; name data.answer_column, too"
    if data.chat == "always" and data.tokenizer == "bytes" and not data.chat_template:
        yield (
            "data.chat is 'always' and the tokenizer 'bytes' has no chat template; set "
            "data.chat_template"
        )
    for name in data.chat_options:
        if name in SET_BY_RUN:
            yield f"data.chat_options has {name!r}, which a run sets itself; take it out"
    for name in ("messages_column", "tools_column", "system_prompt", *CHAT_ALONE):
        if getattr(data, name) and data.chat == "never":
            yield f"data.{name} needs a chat, and data.chat is 'never'; change one of them"


def _template(template: str, setting: str) -> Iterator[str]:
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        yield f"{setting}: {error}; write {{{{ and }}}} for braces that are text"
        return
    if template and not any(name for _, name, _, _ in fields):
        yield (
            f"{setting} is {template!r} without a column; name one in braces, such as {{question}}"
        )
    for _, name, spec, conversion in fields:
        field = f"{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}"
        if name is not None and not (name == field and is_field(name)):
            yield (
                f"{setting} has {{{field}}}; in braces stands a column's name, or a path such "
                "as {extra_info.index}, and braces that are text are written twice"
            )


def _filters(data: DataConfig) -> Iterator[str]:
    for index, row_filter in enumerate(data.filters):
        place = f"data.filters[{index}]"
        try:
            re.compile(row_filter.pattern)
        except re.error as error:
            yield f"{place}: {row_filter.pattern!r} is no regular expression: {error}"
        bounds = (row_filter.at_least, row_filter.at_most)
        if not (row_filter.pattern or row_filter.one_of or bounds != (None, None)):
            yield f"{place} keeps every row; give it a pattern, one_of, at_least or at_most"


def _reward(reward: RewardConfig) -> Iterator[str]:
    if reward.name not in BUILT_IN_REWARDS and not re.fullmatch(
        r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", reward.name
    ):
        known = ", ".join(BUILT_IN_REWARDS)
        yield f"{reward.name!r} does not exist; known: {known}; yours is 'package.module:function'"
    if not math.isfinite(reward.weight):
        yield f"weight is {reward.weight}; choose a number"
    if not 0 <= reward.time_limit_seconds < math.inf:
        yield f"time_limit_seconds is {reward.time_limit_seconds}; 0 takes that of rewards"
    if not 0 <= reward.max_concurrent <= MOST_CONCURRENT:
        yield f"max_concurrent is {reward.max_concurrent}; choose 0 to {MOST_CONCURRENT}"
    if reward.name == "http" and reward.max_concurrent:
        yield "max_concurrent is an option of http: {'options': {'max_concurrent': 32}}"
