"""A checkpoint's `generation_config.json`: the ids and texts that end a response. No JAX here.

How it would sample (temperature, penalties, beams) is passed over without a word: a run samples by
its own settings. What else it says about the text is named in a warning.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import report_unknown
from rlboost_jax.settings.huggingface.known_keys import HARMLESS
from rlboost_jax.settings.validation.data_checks import stop_string_mistakes

GENERATION: Final = "generation_config.json"
_KNOWN: Final = frozenset(
    (
        *HARMLESS,
        *("max_new_tokens", "min_new_tokens", "min_p", "epsilon_cutoff", "eta_cutoff", "max_time"),
        *("penalty_alpha", "num_assistant_tokens", "num_assistant_tokens_schedule", "use_cache"),
        *("_from_model_config", "chat_format", "renormalize_logits", "disable_compile"),
        *("output_logits", "trust_remote_code", "stop_strings", "min_tokens_to_keep", "top_h"),
        *("guidance_scale", "sequence_bias", "force_words_ids", "constraints", "low_memory"),
        *("encoder_repetition_penalty", "token_healing", "dola_layers", "watermarking_config"),
        *("is_assistant", "assistant_confidence_threshold", "assistant_early_exit", "use_mtp"),
        *("assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type"),
        *("cache_config", "max_cache_len", "prefill_chunk_size", "compile_config"),
        "continuous_batching_config",
    )
)


def generation_values(folder: Path) -> dict[str, Any]:
    """Return the contents of the file, empty where it is missing; raises ConfigError."""
    path = folder / GENERATION
    if not path.exists():
        return {}
    try:
        return foreign_json.read(path, dict)
    except (OSError, Unreadable) as error:
        raise ConfigError(f"data.tokenizer: {explained(error)}") from None


def end_ids(folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of the folder's file, of which there may be several; raises ConfigError."""
    values = generation_values(folder)
    report_unknown(values, _KNOWN, str(folder / GENERATION))
    return ids_of(values, str(folder / GENERATION))


def end_texts(folder: Path) -> tuple[str, ...]:
    """`stop_strings` of the folder's file, one or several; raises ConfigError."""
    said = generation_values(folder).get("stop_strings")
    texts = [said] if isinstance(said, str) else said or []
    where = f"stop_strings of {folder / GENERATION}"
    if not isinstance(texts, list):
        raise ConfigError(f"data.tokenizer: {where} is {said!r}; it must be a text or several")
    for line in stop_string_mistakes(texts, where):
        raise ConfigError(f"data.tokenizer: {line}")
    return tuple(texts)


def ids_of(values: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """`eos_token_id` as whole numbers, in the order given; raises ConfigError."""
    said = values.get("eos_token_id")
    listed = said if isinstance(said, list) else [] if said is None else [said]
    for each in listed:
        if not isinstance(each, int) or isinstance(each, bool) or each < 0:
            raise ConfigError(
                f"data.tokenizer: {where}: eos_token_id is {said!r}; it must be an id or a list of "
                "ids, whole numbers of at least 0"
            )
    return tuple(dict.fromkeys(listed))
