"""Opening of a run's exercises, and the record of the data that was read."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.data import vocabulary
from rlboost_jax.data.exercises import Exercises
from rlboost_jax.data.mixture import dataset_of
from rlboost_jax.data.row import DataChanged
from rlboost_jax.data.stop_strings import NO_STRINGS, StopStrings
from rlboost_jax.data.tasks import get_task
from rlboost_jax.data.tokenizers import open_tokenizer
from rlboost_jax.platform import at_rest
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT

FILE: Final = "data.json"


def open_exercises(run: RunConfig) -> Exercises:
    """Open the exercises; the caller closes them. Raises ConfigError if the data is unusable."""
    return dataset_of(run) if run.task.name == DATASET else get_task(run.task)


def ends_of(run: RunConfig) -> tuple[tuple[int, ...], StopStrings]:
    """Stop ids and stop strings of the run's exercises, without reading a row.

    Raises ConfigError.
    """
    data, _ = resolved(run)
    if run.task.name == ENVIRONMENT and not data.tokenizer:
        return (vocabulary.END,), NO_STRINGS
    if run.task.name not in (DATASET, ENVIRONMENT):
        return get_task(run.task).stop_ids, NO_STRINGS
    tokenizer = open_tokenizer(data)
    return tokenizer.stop_ids, tokenizer.stop_strings


def keep_record(workdir: Path, record: Mapping[str, Any]) -> None:
    """Write `data.json`, or compare with the one that is there: prompts follow from the data.

    Raises DataChanged, Damaged.
    """
    path = workdir / FILE
    before = at_rest.read_sealed(
        path, "delete it if the data is what the run began with, and it is made anew"
    )
    if before is not None:
        if before.get("digest") != record["digest"]:
            train, heldout = before.get("train"), before.get("heldout")
            raise DataChanged(
                f"{record['source']}: {record['train']} rows to train on and {record['heldout']} "
                f"held out are not the {train} and {heldout} that the run in "
                f"{workdir} began with; bring the data and its tokenizer back, or choose another "
                "--workdir"
            )
        return
    at_rest.write_sealed(path, record)


def record_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Record as lines for people: what was read, and each reason why a row was left out."""
    yield (
        f"{record['rows']:,} rows of {record['source']}: {record['train']:,} to train on, "
        f"{record['heldout']:,} held out, prompts of up to {record['prompt_tokens_max']} tokens"
    )
    for part in record.get("mixture", ()):
        weight = f"{part['name']}, weight {part['weight']:g}: "
        first, *others = record_lines(part)
        yield from (f"  {weight}{first}", *(f"  {line}" for line in others))
    if "mixture" in record:
        return
    for name, place in (("left_out", ""), ("heldout_left_out", " of those to hold out")):
        for reason, left_out in record[name].items():
            first = f" (first: {left_out['first']})" if left_out["first"] else ""
            count = left_out["rows"]
            yield f"  {count:,} row{'s' * (count != 1)}{place} left out, {reason}{first}"
    yield from (f"  {note}" for note in record["notes"])
