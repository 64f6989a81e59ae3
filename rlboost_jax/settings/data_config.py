"""Settings of prompts: a generated task, or a data set."""

from dataclasses import dataclass
from typing import Any, Literal

from rlboost_jax.settings.setting import setting

TaskName = Literal["clock", "running_sum", "reversal", "dataset", "environment"]
DataPreset = Literal["", "gsm8k", "math", "openr1_math", "deepscaler", "countdown"]
DataFormat = Literal["auto", "jsonl", "csv", "tsv", "parquet", "arrayrecord", "huggingface"]
AnswerFormat = Literal["", "after_hashes", "boxed", "answer_tag"]
BadRows = Literal["skip", "error"]
Chat = Literal["auto", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task that is generated, for models that are trained from scratch."""

    name: TaskName = setting(
        "clock",
        'a generated task, "dataset" (section data), or "environment", which makes examples of '
        "numbers",
    )
    mean_length: float = setting(14.0, "mean length of problems, in the task's own unit", above=0)
    max_length: int = setting(90, "longest problem, same unit")
    num_heldout: int = setting(
        256, "prompts kept apart for evaluation, never trained on", unit="prompts", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Keeps the rows that meet all conditions given here; see docs/how-to/data.md."""

    column: str
    pattern: str = ""  # regular expression found somewhere in the text of the value
    one_of: tuple[str | int | float | bool | None, ...] = ()  # the value is one of these
    at_least: float | None = None
    at_most: float | None = None
    exclude: bool = False  # keep the other rows instead


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """One of several data sets of a run: what `data` says of one, by the same names."""

    weight: float = 1.0  # its share of the prompts, by the sum of all; 0: all rows are held out
    heldout_weight: float | None = None  # of evaluation; None: weight, or 1; 0: none is held out
    name: str = ""  # in metrics and records, and what rewards get as `data_source`
    preset: DataPreset = ""
    source: str = ""
    format: DataFormat = "auto"
    subset: str = ""
    split: str = ""
    heldout_source: str = ""
    heldout_subset: str = ""
    heldout_split: str = ""
    prompt_column: str = ""
    messages_column: str = ""
    tools_column: str = ""
    template: str = ""
    answer_column: str = ""
    answer_format: AnswerFormat = ""
    reward_columns: tuple[str, ...] = ()
    filters: tuple[FilterConfig, ...] = ()
    system_prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where prompts come from, with `task.name = "dataset"`; see docs/how-to/data.md."""

    preset: DataPreset = setting(
        "", "a well-known data set, which fills the fields that are left empty (data_presets.py)"
    )
    source: str = setting(
        "", "file, folder, pattern such as data/*.jsonl, or name on the hub", may_change="at once"
    )
    format: DataFormat = setting("auto", 'format of the source; "auto": by the ending')
    subset: str = setting("", "configuration of a Hugging Face data set")
    split: str = setting("", 'split of a Hugging Face data set; "": train')
    heldout_source: str = setting(
        "", 'rows for evaluation; "": heldout_split, or heldout_share', may_change="at once"
    )
    heldout_subset: str = setting("", "configuration of heldout_source")
    heldout_split: str = setting("", "split of heldout_source, or of source, for evaluation")
    heldout_share: float = setting(
        0.05,
        "share of the rows for evaluation where they have no place of their own",
        note="Chosen by a hash of the prompt.",
        at_least=0,
        at_most=0.9,
    )
    prompt_column: str = setting("", 'text of the prompt; "": prompt, where there is no template')
    messages_column: str = setting(
        "",
        'a chat in place of a prompt: a list of {"role": …, "content": …}, or of ShareGPT\'s turns',
    )
    tools_column: str = setting(
        "", "functions that a prompt offers, as OpenAI's protocol has them, or JSON text of it"
    )
    template: str = setting(
        "",
        'template of the prompt, such as "{question} Answer in \\\\boxed{{}}."; '
        '"": prompt_column as it is',
    )
    answer_column: str = setting("", 'what rewards get as `answer`; "": none')
    answer_format: AnswerFormat = setting(
        "", 'where the answer stands in its column: after ####, in \\\\boxed{}; "": all of it'
    )
    reward_columns: tuple[str, ...] = setting((), "more columns for rewards, under their own names")
    filters: tuple[FilterConfig, ...] = setting(
        (), 'rows to keep: dictionaries such as {"column": "level", "one_of": ("Level 5",)}'
    )
    mixture: tuple[MixtureConfig, ...] = setting(
        (),
        'several data sets in one run: dictionaries such as {"preset": "gsm8k", "weight": 2.0}',
        note="An entry takes the fields of this section that say what and where its rows are.",
    )
    bad_rows: BadRows = setting(
        "skip",
        "what happens on a row that cannot be read",
        note="A broken line, no value, an empty prompt. Rows that are skipped are counted.",
    )
    max_prompt_tokens: int = setting(
        0, "longer prompts are left out; 0: engine.max_prompt_tokens", at_least=0
    )
    tokenizer: str = setting(
        "", '"bytes", a folder, or a name on the hub; "": model.source', may_change="at once"
    )
    chat: Chat = setting("auto", 'whether to use the chat template; "auto": where there is one')
    chat_template: str = setting("", "Jinja, in place of the tokenizer's")
    chat_options: dict[str, Any] = setting(
        {}, 'options of the chat template, such as {"enable_thinking": False}'
    )
    system_prompt: str = setting("", "first message of each chat")
    stop_ids: tuple[int, ...] = setting(
        (), "token ids that end a response, besides those of tokenizer and generation configuration"
    )
    stop_strings: tuple[str, ...] = setting(
        (),
        "texts that end a response, besides those of the generation configuration",
        note="With the token that completes one, which belongs to the response. Rewards and "
        "environments read the text before it.",
    )
