"""Check that a run's tokenizer is the one that a checkpoint comes with."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rlboost_jax.data.tokenizers import (
    BYTES,
    HuggingFaceTokenizer,
    Tokenizer,
    tokenizer_folder,
)
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_config import DataConfig

PROBES: Final = ("The answer is 42.", "x = {1: 'ä'}\n\tfor", "数学")  # that tell two apart


def check_belongs(tokenizer: Tokenizer, data: DataConfig, source: str) -> None:
    """Raise ConfigError if the checkpoint's own tokenizer has other ids.

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


def check_teacher(data: DataConfig, teacher: str) -> None:
    """Raise ConfigError if a teacher's tokens differ from the run's.

    Compared are the vocabularies without what was added to them: marks of chats and the like, of
    which one may have more than the other. Bytes have no other vocabulary.

    Args:
        teacher: `source` of one of `distillation.teachers`.
    """
    if not data.tokenizer or data.tokenizer in (BYTES, teacher):
        return
    own = HuggingFaceTokenizer(data).vocabulary
    try:
        theirs = HuggingFaceTokenizer(replace(data, tokenizer=teacher)).vocabulary
    except ConfigError as error:
        line = error.under("distillation.teachers")
        raise ConfigError(f"{line}; a teacher needs its tokenizer, to be compared") from None
    ours, digest = _digest(own), _digest(theirs)
    if ours != digest:
        other = next((t for t in sorted(own) if theirs.get(t) != own[t]), "")
        raise ConfigError(
            f"distillation.teachers: the vocabulary of {teacher!r} ({digest[:12]}, "
            f"{len(theirs):,} tokens) is not that of the run's tokenizer ({ours[:12]}, "
            f"{len(own):,} tokens)"
            + (f": {other!r} is {theirs.get(other)} instead of {own[other]}" if other else "")
            + "; take a teacher with the policy's tokenizer"
        )


def _digest(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 of a vocabulary."""
    text = json.dumps(sorted(vocabulary.items()), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
