"""Token ids of a tokenizer for which the model has no row.

Gemma 3's tokenizer has 262,145 ids and its models of text have 262,144 rows: the last id stands
for a picture. Such an id is refused where a prompt or the end of a response uses it, and counted
where nothing does. A model that begins at random may have as many rows as its run asks for.
"""

from collections.abc import Sequence

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.model_config import ModelConfig


def ids_without_row(name: str, num_ids: int, stop_ids: Sequence[int], model: ModelConfig) -> int:
    """Number of ids of the tokenizer `name` for which the model has no row.

    Args:
        num_ids: ids of the tokenizer are below this.

    Raises:
        ConfigError: the model may have more rows, or an end token has none.
    """
    rows = model.vocab_size
    if num_ids > rows and not model.source:
        raise ConfigError(
            f"model.vocab_size is {rows}, the tokenizer {name!r} has {num_ids} tokens; raise "
            "model.vocab_size"
        )
    if outside := [stop for stop in stop_ids if stop >= rows]:
        advice = "take the checkpoint's own tokenizer" if model.source else "raise model.vocab_size"
        raise ConfigError(
            f"the end token {outside[0]} of {name!r} has no row in the model, which has ids 0 to "
            f"{rows - 1} (model.vocab_size); {advice}"
        )
    return max(0, num_ids - rows)


def about_ids(name: str, num_ids: int, rows: int) -> str:
    """Line for people about ids without a row."""
    count = num_ids - rows
    which = "the last one has" if count == 1 else f"the last {count:,} have"
    return (
        f"the tokenizer {name!r} has {num_ids:,} ids, the model {rows:,} rows: {which} none, and "
        "a prompt that uses one is left out"
    )


def outside_row(ids: Sequence[int], rows: int) -> int | None:
    """First id that has no row; None if all have one."""
    return next((token for token in ids if token >= rows), None) if max(ids) >= rows else None
