"""Tokenizer files of an exported model, with the run's chat template and stop ids.

The chat template is the run's and so are the ids that end a response, whatever the files that they
are copied from say. What no file can carry is a line.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rlboost_jax.data.chat_rendering import DATE
from rlboost_jax.data.open import ends_of
from rlboost_jax.data.tokenizers import BYTES, asks_for_today
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, read_text
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.huggingface.generation import (
    GENERATION,
    end_texts,
    generation_values,
    ids_of,
)
from rlboost_jax.settings.huggingface.sources import TOKENIZER, source_folder
from rlboost_jax.settings.mixture_parts import parts_of
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT

CHAT_TEMPLATE: Final = "chat_template.jinja"
_CONFIG: Final = "tokenizer_config.json"
_OTHER_TEMPLATES: Final = ("chat_template.json", "additional_chat_templates")


def write_tokenizer(run: RunConfig, folder: Path) -> list[str]:
    """Write the files into the folder of an exported model, or of adapters.

    Returns:
        Lines for a person: what is missing, what was changed, and what is not carried.
    """
    data, _ = resolved(run)
    of_text = run.task.name in (DATASET, ENVIRONMENT)
    name = data.tokenizer if of_text else run.model.source
    if not name:
        return []
    if name == BYTES:
        return [f"no tokenizer is written: the run's tokens are bytes ({BYTES!r})"]
    try:
        place = source_folder(name, TOKENIZER)
    except ConfigError as error:
        said = error.under("data.tokenizer") if of_text else error
        return [f"the tokenizer's files are missing: {said}"]
    found = sorted(p for pattern in TOKENIZER for p in place.glob(pattern) if p.is_file())
    if not found:
        return [f"{place} has no tokenizer, so there is none here"]
    for path in dict.fromkeys(found):
        to = folder / path.relative_to(place)
        to.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, to)
    return list(_as_the_run_used_it(run, folder)) if of_text else []


def _as_the_run_used_it(run: RunConfig, folder: Path) -> Iterator[str]:
    data, _ = resolved(run)
    if run.task.name == DATASET and data.chat == "never":
        yield "data.chat is 'never': the run's prompts went through no chat template"
    elif data.chat_template:
        _write_template(folder, data.chat_template)
        yield f"{CHAT_TEMPLATE} is the run's data.chat_template"
    if asks_for_today(_template(folder)):
        yield (
            f"the chat template asks for today's date, and the run was trained with {DATE:%d %B %Y}"
        )
    yield from _write_stops(run, folder)
    yield from _other_sampling(run, folder)
    options = (
        run.environment.template_options if run.task.name == ENVIRONMENT else data.chat_options
    )
    if options:
        yield (
            "no file carries the template's options; give apply_chat_template "
            f"{json.dumps(dict(options))}"
        )
    if run.task.name == DATASET:
        yield from _put_by_data(run)


def _put_by_data(run: RunConfig) -> Iterator[str]:
    """Text that stood around each question, for the data set or those of a mixture."""
    several = [(f" of {part.name!r}", part.run) for part in parts_of(run)]
    for name, alone in several or [("", run)]:
        data, _ = resolved(alone)
        if data.system_prompt:
            text = json.dumps(data.system_prompt, ensure_ascii=False)
            yield f"no file carries data.system_prompt{name}; begin each chat with it: {text}"
        if data.template:
            text = json.dumps(data.template, ensure_ascii=False)
            yield f"no file carries data.template{name}, in which each question stood: {text}"


def _template(folder: Path) -> str:
    """All chat templates of the folder as one text, to search in."""
    paths = (folder / CHAT_TEMPLATE, folder / _CONFIG)
    found = []
    for path in paths:
        with contextlib.suppress(OSError, Unreadable):  # the tokenizer was opened all the same
            found.append(read_text(path, foreign_json.MOST_BYTES))
    return "\n".join(found)


def _write_template(folder: Path, template: str) -> None:
    """Write the run's template as the only one."""
    for name in _OTHER_TEMPLATES:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (folder / CHAT_TEMPLATE).write_text(template)
    config = folder / _CONFIG
    values = _object(config)
    if values.pop("chat_template", None) is not None:
        config.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def _write_stops(run: RunConfig, folder: Path) -> Iterator[str]:
    """Write the run's stop ids to generation_config.json, if `generate` would stop otherwise.

    Yields a line for each change.
    """
    try:
        stops, strings = ends_of(run)
        values = generation_values(folder) or _marks(folder)
        said = ids_of(values, GENERATION)
    except ConfigError as error:
        yield f"the run's stop ids are not carried: {error}"
        return
    if set(stops) != set(said):
        every = [*(i for i in said if i in stops), *(i for i in stops if i not in said)]
        ends = every if len(every) > 1 else every[0]
        values = {**values, "eos_token_id": ends}
        (folder / GENERATION).write_text(json.dumps(values, indent=2) + "\n")
        yield f"{GENERATION} has the run's stop ids: {', '.join(map(str, every))}"
    if set(strings.strings) != set(end_texts(folder)):
        values = {**values, "stop_strings": list(strings.strings)}
        (folder / GENERATION).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
        yield f"{GENERATION} has the run's stop strings: {', '.join(map(repr, strings.strings))}"


def _other_sampling(run: RunConfig, folder: Path) -> Iterator[str]:
    """Lines on where generation_config.json, which stays the source's, samples differently."""
    own = {
        "temperature": run.sampling.temperature,
        "top_p": run.sampling.top_p,
        "top_k": run.sampling.top_k,
        **{"min_p": 0, "repetition_penalty": 1, "no_repeat_ngram_size": 0},
    }
    values = _object(folder / GENERATION)
    other = [name for name, value in own.items() if values.get(name, value) not in (value, None)]
    if other:
        theirs, ours = (
            ", ".join(f"{name} {each[name]!r}" for name in other) for each in (values, own)
        )
        yield f"{GENERATION} samples with {theirs}, as its source; the run did with {ours}"


def _marks(folder: Path) -> dict[str, Any]:
    """Values that transformers takes from config.json if there is no generation_config.json."""
    values = _object(folder / "config.json")
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: values[name] for name in names if values.get(name) is not None}


def _object(path: Path) -> dict[str, Any]:
    """JSON object in a file; empty if there is none."""
    try:
        return foreign_json.read(path, dict)
    except (OSError, Unreadable):
        return {}
