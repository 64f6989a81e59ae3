"""Rotary positions of a checkpoint's config.json as fields of `ModelConfig`, and back.

Both ways of writing them are read: `rope_theta` with `rope_scaling`, as transformers 4 does, and
`rope_parameters`, as 5 does. Any key of a section may change what a position means: one that is not
known is refused, and so are two places that contradict each other. What the fields mean:
`models/rope.py`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import refuse_unknown
from rlboost_jax.settings.huggingface.families import FAMILIES
from rlboost_jax.settings.huggingface.keys import number, section, whole
from rlboost_jax.settings.model_config import ModelConfig

_PLAIN: Final[Mapping[str, Any]] = {  # what fields are where there is no scaling
    "rope_scaling": "",
    "rope_factor": 1.0,
    "rope_low_frequency_factor": 1.0,
    "rope_high_frequency_factor": 4.0,
    "rope_original_positions": 8192,
    "rope_attention_factor": 1.0,
}
_YARN_TURNS: Final = 1.0, 32.0  # beta_slow and beta_fast where nothing is said
_LAYERED: Final = ("full_attention", "sliding_attention")
_ORIGINAL: Final = "original_max_position_embeddings"
_EVERYWHERE: Final = ("rope_type", "type", "rope_theta")
# Keys of a section by its type. `original_max_position_embeddings` says nothing in the first two,
# nor does `finetuned` anywhere.
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (_ORIGINAL,),
    "linear": ("factor", _ORIGINAL, "finetuned"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": (
        *("factor", "beta_slow", "beta_fast", _ORIGINAL, "finetuned"),
        *("attention_factor", "attn_factor", "mscale", "mscale_all_dim"),
    ),
}
# Keys that are known with one value, at which they change nothing.
_NEUTRAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {"factor": 1, "partial_rotary_factor": 1},
    "linear": {"partial_rotary_factor": 1},
    "llama3": {"partial_rotary_factor": 1},
    "yarn": {
        "partial_rotary_factor": 1,
        "truncate": True,
        "extrapolation_factor": 1,  # this and the next as vLLM reads them
        "apply_yarn_scaling": True,
    },
}


def rope_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that begin with rope_, and `local_rope_theta`.

    Args:
        values: the file's own, of config.json, without a family's defaults.
        where: its path, for messages.

    Raises:
        ConfigError: a key that is not known, or is missing, or contradicts another.
    """
    row = FAMILIES[values["model_type"]]
    given = section(values, "rope_parameters", where)
    layered = any(key in given for key in _LAYERED)
    if layered:
        refuse_unknown(given, _LAYERED, f"{where}: rope_parameters of layers by their types")
    far = section(given, "full_attention", where) if layered else given
    near = section(given, "sliding_attention", where) if layered else {}
    old = section(values, "rope_scaling", where)
    far = _agreed(
        ("rope_theta", {"rope_theta": values.get("rope_theta")}),
        ("rope_scaling", old),
        ("rope_parameters", far),
        where=where,
    )
    fields = {
        "rope_theta": number(far, "rope_theta", where, row.rope_theta),
        "local_rope_theta": 0.0,
        **_PLAIN,
        **_scaling(far, values, where),
    }
    if row.local_rope:
        base = {"rope_theta": values.get("rope_local_base_freq")}
        near = _agreed(("rope_local_base_freq", base), ("rope_parameters", near), where=where)
        if (kind := _kind(near, where)) != "default":
            raise ConfigError(
                f"{where}: rope type {kind!r} of layers with a window; known: default"
            )
        _check_keys(near, kind, where)
        fields["local_rope_theta"] = number(near, "rope_theta", where, 10_000.0)
    elif near and near != far:
        raise ConfigError(
            f"{where}: rope_parameters are {dict(far)} in layers that see all and {dict(near)} in "
            f"those with a window; a {values['model_type']} has one kind for both"
        )
    return fields


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
        found["attention_factor"] = said = model.rope_attention_factor
        if not math.isclose(said, usual := _of_weight(1.0, model.rope_factor)):
            found["attn_factor"] = said / usual  # for readers that pass over the other
    if model.rope_scaling != "linear":
        found["original_max_position_embeddings"] = model.rope_original_positions
    return found


def _agreed(*parts: tuple[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return the one section that several agree on; raises ConfigError where they differ."""
    found: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, part in parts:
        for key, value in part.items():
            if value is None:
                continue
            if key in found and found[key] != value:
                raise ConfigError(
                    f"{where}: {key} is {found[key]!r} by {said_by[key]} and {value!r} by {name}; "
                    "leave one of them"
                )
            found[key], said_by[key] = value, name
    return found


def _kind(rope: Mapping[str, Any], where: str) -> Any:
    kinds = {key: rope[key] for key in ("rope_type", "type") if rope.get(key) is not None}
    if len(set(map(repr, kinds.values()))) > 1:
        raise ConfigError(
            f"{where}: rope_type is {kinds['rope_type']!r} and type is {kinds['type']!r}; leave "
            "one of them"
        )
    return next(iter(kinds.values()), "default")


def _check_keys(rope: Mapping[str, Any], kind: str, where: str) -> None:
    """Raise ConfigError for a key that a section of this kind does not know."""
    neutral = _NEUTRAL[kind]
    for key, value in rope.items():
        if key in neutral and value is not None and value != neutral[key]:
            raise ConfigError(
                f"{where}: {key} is {value!r} in a {kind} rope; that is not supported, only "
                f"{neutral[key]!r} is"
            )
    known = (*_EVERYWHERE, *_KNOWN[kind], *neutral)
    refuse_unknown(rope, known, f"{where}: in a {kind} rope")


def _scaling(rope: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = _kind(rope, where)
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise ConfigError(f"{where}: rope type {kind!r}; known: {', '.join(_KNOWN)}")
    _check_keys(rope, kind, where)
    if kind == "default":
        return {}
    fields: dict[str, Any] = {"rope_scaling": kind, "rope_factor": number(rope, "factor", where)}
    if kind == "llama3":
        fields["rope_low_frequency_factor"] = number(rope, "low_freq_factor", where)
        fields["rope_high_frequency_factor"] = number(rope, "high_freq_factor", where)
    if kind == "yarn":
        slow, fast = _YARN_TURNS
        fields["rope_low_frequency_factor"] = number(rope, "beta_slow", where, slow)
        fields["rope_high_frequency_factor"] = number(rope, "beta_fast", where, fast)
        fields["rope_attention_factor"] = _attention_factor(rope, fields["rope_factor"], where)
    if kind != "linear":
        beside = {_ORIGINAL: values.get(_ORIGINAL)}  # where Phi's files have it
        original = _agreed(("config.json", beside), ("its section", rope), where=where)
        longest = values.get("max_position_embeddings")
        fields["rope_original_positions"] = whole(
            {_ORIGINAL: longest, **original}, _ORIGINAL, where
        )
    return fields


def _attention_factor(rope: Mapping[str, Any], factor: float, where: str) -> float:
    """Attention factor of a yarn scaling, from the keys of its section.

    `attention_factor` is the factor itself. `attn_factor` multiplies the one that follows from
    `factor`, as DeepSeek's own code, vLLM and llama.cpp read it; transformers passes over it.
    `mscale` and `mscale_all_dim` are the two weights of DeepSeek-V2, which transformers reads only
    where both are there.

    Source: Peng et al. 2023, arXiv:2309.00071, equation 22 (here its root, for queries and for keys
    each).
    """
    above, below = (rope.get(key) for key in ("mscale", "mscale_all_dim"))
    if above and below:
        weights = (number(rope, key, where) for key in ("mscale", "mscale_all_dim"))
        follows = _of_weight(next(weights), factor) / _of_weight(next(weights), factor)
    elif above in (None, 1) and below in (None, 0):
        follows = _of_weight(1.0, factor)
    else:
        raise ConfigError(
            f"{where}: mscale is {above!r} and mscale_all_dim is {below!r}, which readers take "
            "differently; give both, or attention_factor"
        )
    follows *= number(rope, "attn_factor", where, 1.0)
    said = number(rope, "attention_factor", where, follows)
    if rope.get("attn_factor") is not None and not math.isclose(said, follows, rel_tol=1e-4):
        raise ConfigError(
            f"{where}: attention_factor is {said} and attn_factor makes it {follows:.6g}; leave "
            "one of them"
        )
    return said


def _of_weight(weight: float, factor: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
