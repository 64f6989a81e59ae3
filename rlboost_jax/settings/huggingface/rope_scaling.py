"""Rotary positions of a checkpoint's config.json as fields of `ModelConfig`, and back.

Both ways of writing them are read: `rope_theta` with `rope_scaling`, as transformers 4 does, and
`rope_parameters`, as 5 does. What the fields mean: `models/rope.py`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, get_args

from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.huggingface.families import FAMILIES
from rlboost_jax.settings.huggingface.keys import number, section, whole
from rlboost_jax.settings.model import ModelConfig, RopeScaling

_PLAIN: Final[Mapping[str, Any]] = {  # what fields are where there is no scaling
    "rope_scaling": "",
    "rope_factor": 1.0,
    "rope_low_frequency_factor": 1.0,
    "rope_high_frequency_factor": 4.0,
    "rope_original_positions": 8192,
    "rope_attention_factor": 1.0,
}
_YARN_TURNS: Final = 1.0, 32.0  # beta_slow and beta_fast where nothing is said


def rope_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that begin with rope_, and `local_rope_theta`.

    Args:
        values: of config.json.
        where: its path, for messages.

    Raises ConfigError.
    """
    given = section(values, "rope_parameters", where)
    layered = "full_attention" in given or "sliding_attention" in given
    far = section(given, "full_attention", where) if layered else given
    near = section(given, "sliding_attention", where) if layered else {}
    far = {
        "rope_theta": values.get("rope_theta", 10_000.0),
        **section(values, "rope_scaling", where),
        **far,
    }
    if (kind := near.get("rope_type", "default")) != "default":
        raise ConfigError(f"{where}: rope type {kind!r} of layers with a window; known: default")
    local = {"rope_theta": values.get("rope_local_base_freq", 10_000.0), **near}
    has_local = FAMILIES[values["model_type"]].local_rope
    return {
        "rope_theta": number(far, "rope_theta", where),
        "local_rope_theta": number(local, "rope_theta", where) if has_local else 0.0,
        **_PLAIN,
        **_scaling(far, values, where),
    }


def rope_values(model: ModelConfig) -> dict[str, Any] | None:
    """`rope_scaling` of config.json, in the older way; None where there is none."""
    if not model.rope_scaling:
        return None
    found: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_factor}
    low, high = model.rope_low_frequency_factor, model.rope_high_frequency_factor
    if model.rope_scaling == "llama3":
        found |= {"low_freq_factor": low, "high_freq_factor": high}
    if model.rope_scaling == "yarn":
        found |= {"beta_slow": low, "beta_fast": high}
        found["attention_factor"] = model.rope_attention_factor
    if model.rope_scaling != "linear":
        found["original_max_position_embeddings"] = model.rope_original_positions
    return found


def _scaling(rope: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return {}
    if kind not in get_args(RopeScaling):
        known = ", ".join(("default", *filter(None, get_args(RopeScaling))))
        raise ConfigError(f"{where}: rope type {kind!r}; known: {known}")
    fields = {"rope_scaling": kind, "rope_factor": number(rope, "factor", where)}
    if kind == "llama3":
        fields["rope_low_frequency_factor"] = number(rope, "low_freq_factor", where)
        fields["rope_high_frequency_factor"] = number(rope, "high_freq_factor", where)
    if kind == "yarn":
        if rope.get("truncate") is False:
            raise ConfigError(f"{where}: truncate is False in a yarn; that is not supported")
        slow, fast = _YARN_TURNS
        fields["rope_low_frequency_factor"] = number(rope, "beta_slow", where, slow)
        fields["rope_high_frequency_factor"] = number(rope, "beta_fast", where, fast)
        fields["rope_attention_factor"] = _attention_factor(rope, fields["rope_factor"], where)
    if kind != "linear":
        key = "original_max_position_embeddings"
        longest = values.get("max_position_embeddings") if kind == "yarn" else None
        fields["rope_original_positions"] = whole({key: longest, **rope}, key, where)
    return fields


def _attention_factor(rope: Mapping[str, Any], factor: float, where: str) -> float:
    """Of yarn, as transformers computes it where nothing is said.

    Source: Peng et al. 2023, arXiv:2309.00071, equation 22 (here its root, for queries and for
    keys each); with the two weights of DeepSeek-V2.
    """
    if rope.get("attention_factor") is not None:
        return number(rope, "attention_factor", where)

    def of_weight(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    above, below = (number(rope, key, where, 0.0) for key in ("mscale", "mscale_all_dim"))
    return of_weight(above) / of_weight(below) if above and below else of_weight(1.0)
