"""Whether a run's tokenizer is the one that its checkpoint comes with."""

from dataclasses import replace
from typing import Final

from rlboost_jax.data.tokenizers import HuggingFaceTokenizer, Tokenizer, tokenizer_folder
from rlboost_jax.settings.data import DataConfig
from rlboost_jax.settings.errors import ConfigError

PROBES: Final = ("The answer is 42.", "x = {1: 'ä'}\n\tfor", "数学")  # that tell two apart


def check_belongs(tokenizer: Tokenizer, data: DataConfig, source: str) -> None:
    """Raise ConfigError where the checkpoint comes with a tokenizer that has other ids.

    Its parameters know those. One with more special tokens is no other.

    Args:
        source: `model.source`.
    """
    if not source or data.tokenizer == source:
        return
    try:
        folder = tokenizer_folder(source)
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
            return  # nothing to compare with
        own = HuggingFaceTokenizer(replace(data, tokenizer=source))
    except ConfigError:
        return
    given, expected = (t.encode(PROBES, chat=True) for t in (tokenizer, own))
    for probe, theirs, ids in zip(PROBES, given, expected, strict=True):
        if theirs != ids:
            raise ConfigError(
                f"data.tokenizer {data.tokenizer!r} is not the one of model.source {source!r}: "
                f"{probe!r} is {theirs[:4]} … instead of {ids[:4]} …; set data.tokenizer to '', "
                "which takes the checkpoint's own"
            )
