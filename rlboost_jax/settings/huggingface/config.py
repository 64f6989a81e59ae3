"""A checkpoint's `config.json` as fields of `ModelConfig`, and back. No JAX here.

Where a key is missing, its value is that of transformers' own configuration class. What a
checkpoint asks for and the decoder does not do is an error that names the key; keys that nobody
here knows are named in a warning (`known_keys.py`).
"""

from collections.abc import Mapping
from typing import Any, Final, assert_never

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.shared_limits import MAX_POSITIONS
from rlboost_jax.settings.huggingface.families import FAMILIES, Windows
from rlboost_jax.settings.huggingface.keys import flag, number, whole
from rlboost_jax.settings.huggingface.known_keys import check_around_text, check_keys
from rlboost_jax.settings.huggingface.rope_scaling import rope_fields, rope_values
from rlboost_jax.settings.model_config import ModelConfig

_SIZES: Final = {
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_query_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
}
# Fields that some families read: the key, and its value where it is missing (None: it is needed).
_NUMBERS: Final[Mapping[str, tuple[str, float | None]]] = {
    "query_scalar": ("query_pre_attn_scalar", None),
    "attention_soft_cap": ("attn_logit_softcapping", 0.0),
    "final_soft_cap": ("final_logit_softcapping", 0.0),
}
_ACTIVATIONS: Final = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LAYERS: Final = {"full_attention": "G", "sliding_attention": "L"}


def from_huggingface(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of `ModelConfig`, all but `source` and `dtype`.

    The text part of a Gemma 3 with vision is taken for a model of its own.

    Args:
        values: of config.json.
        where: its path, for messages.

    Raises:
        ConfigError: an unknown architecture, or a key that is missing or asks for what is not done.
    """
    if values.get("model_type") == "gemma3" and isinstance(values.get("text_config"), Mapping):
        check_around_text(values, where)
        inner = values["text_config"].get("model_type", "gemma3_text")
        if inner != "gemma3_text":
            raise ConfigError(
                f"{where}: model_type of text_config is {inner!r}; only 'gemma3_text' is supported"
            )
        tied = values.get("tie_word_embeddings")  # of the whole; that of the text comes second
        values = {**values["text_config"], "model_type": "gemma3_text"}
        values |= {} if tied is None else {"tie_word_embeddings": tied}
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(
            f"{where}: model_type is {family!r}; known are {', '.join(FAMILIES)}, "
            "name a checkpoint of one of them"
        )
    row, own = FAMILIES[family], values
    check_keys(own, row, {name: key for name, (key, _) in _NUMBERS.items()}, where)
    values = {**row.defaults, **values}
    sizes = {ours: whole(values, theirs, where) for ours, theirs in _SIZES.items()}
    heads = sizes["num_query_heads"]
    activation = values.get(row.activation_key) or row.activation
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConfigError(
            f"{where}: {row.activation_key} is {activation!r}; known: {', '.join(_ACTIVATIONS)}"
        )
    numbers = dict.fromkeys(_NUMBERS, 0.0)
    for name in row.numbers:
        key, default = _NUMBERS[name]
        numbers[name] = number(values, key, where, default)

    return {
        **sizes,
        **numbers,
        **_pattern(values, sizes["num_layers"], where),
        **rope_fields(own, where),
        **_experts(values, where),
        "family": family,
        "num_key_heads": whole(values, "num_key_value_heads", where, heads),
        "head_dim": whole(values, "head_dim", where, max(1, sizes["embed_dim"] // heads)),
        "attention_bias": _has_bias(values, row.attention_bias, where),
        "output_bias": _has_bias(values, row.output_bias, where),
        "qk_norm": row.qk_norm,
        "norm_epsilon": number(values, "rms_norm_eps", where, 1e-6),
        "norm_offset": row.norm_offset,
        "post_norms": row.post_norms,
        "activation": _ACTIVATIONS[activation],
        "scale_embeddings": row.scale_embeddings,
        "tie_embeddings": flag(values, "tie_word_embeddings", where),
    }


def to_huggingface(model: ModelConfig) -> dict[str, Any]:
    """A config.json that transformers, and `from_huggingface`, read as this model.

    Written in the older way, which transformers 4 and 5 and other engines know.

    Raises:
        ConfigError: no family of checkpoints can say what the configuration says.
    """
    for family in dict.fromkeys((model.family, *FAMILIES)):
        values = _values(model, family)
        fields = from_huggingface(values, "config.json")
        if all(name == "family" or getattr(model, name) == fields[name] for name in fields):
            return values
    values = from_huggingface(_values(model, model.family), "config.json")
    name = next(n for n in values if n != "family" and getattr(model, n) != values[n])
    raise ConfigError(
        f"config.model.{name} is {getattr(model, name)!r}; a checkpoint of family "
        f"{model.family!r} cannot say so, nor can one of another family"
    )


def _values(model: ModelConfig, family: str) -> dict[str, Any]:
    row = FAMILIES[family]
    values: dict[str, Any] = {
        "architectures": [row.model_class],
        "model_type": family,
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": model.num_key_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_scaling": rope_values(model),
        "tie_word_embeddings": model.tie_embeddings,
        "sliding_window": model.sliding_window or None,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
        row.activation_key: "gelu_pytorch_tanh" if model.activation == "gelu_tanh" else "silu",
    }
    for said, has_bias in (
        (row.attention_bias, model.attention_bias),
        (row.output_bias, model.output_bias),
    ):
        if isinstance(said, str):
            values[said] = has_bias
    for name in row.numbers:
        key, needed = _NUMBERS[name][0], _NUMBERS[name][1] is None
        value = getattr(model, name)
        values[key] = _whole(value) if needed else value or None
    if row.layer_types:
        values["layer_types"] = [
            "sliding_attention" if window else "full_attention" for window in model.layer_windows
        ]
    if row.window_switch:
        values["use_sliding_window"] = model.sliding_window > 0
        values["max_window_layers"] = 0
    if row.local_rope:
        values["rope_local_base_freq"] = model.local_rope_theta or model.rope_theta
    if row.experts:
        values["num_experts"] = model.num_experts
        values["num_experts_per_tok"] = model.experts_per_token
        values["moe_intermediate_size"] = model.expert_dim
        values["norm_topk_prob"] = model.normalize_experts
        values["decoder_sparse_step"] = 1
        values["mlp_only_layers"] = []
    return values


def _has_bias(values: Mapping[str, Any], said: str | bool, where: str) -> bool:
    return flag(values, said, where) if isinstance(said, str) else said


def _pattern(values: Mapping[str, Any], num_layers: int, where: str) -> dict[str, Any]:
    """Which layers see a window, and how long it is."""
    row, window = FAMILIES[values["model_type"]], values.get("sliding_window")
    if row.windows == "none" or (
        row.window_switch and not flag(values, "use_sliding_window", where)
    ):
        window = None
    if window is not None:
        window = whole(values, "sliding_window", where)
    types = values.get("layer_types") if row.layer_types else None
    if window is None:
        letters = "G" * num_layers
    elif types is None:
        letters = "".join(_usual_layer(values, row.windows, i, where) for i in range(num_layers))
    elif not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise ConfigError(f"{where}: layer_types is {types!r}; it must be a list of names")
    else:
        for kind in types:
            if kind not in _LAYERS:
                raise ConfigError(f"{where}: layer type {kind!r}; known: {', '.join(_LAYERS)}")
        letters = "".join(_LAYERS[kind] for kind in types)
    if len(letters) != num_layers:
        raise ConfigError(
            f"{where}: layer_types has {len(letters)} entries and num_hidden_layers is {num_layers}"
        )
    period = next(
        p for p in range(1, num_layers + 1) if (letters[:p] * num_layers)[:num_layers] == letters
    )
    return {
        "attention_pattern": letters[:period],
        "sliding_window": window if window is not None and "L" in letters else 0,
    }


def _usual_layer(values: Mapping[str, Any], windows: Windows, index: int, where: str) -> str:
    """Letter of a layer where the file does not describe layers one by one."""
    match windows:
        case "none":
            return "G"
        case "all":
            return "L"
        case "late":
            return "L" if index >= whole(values, "max_window_layers", where, 28, least=0) else "G"
        case "alternate":
            return "L" if (index + 1) % 2 else "G"
        case "five_of_six":
            period = whole(values, "sliding_window_pattern", where, 6)
            return "L" if (index + 1) % period else "G"
        case _:
            assert_never(windows)


def _experts(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not FAMILIES[values["model_type"]].experts:
        names = ("num_experts", "experts_per_token", "expert_dim")
        return {**dict.fromkeys(names, 0), "normalize_experts": True}
    key = "num_experts" if "num_experts" in values else "num_local_experts"
    return {
        "num_experts": whole(values, key, where, least=0),
        "experts_per_token": whole(values, "num_experts_per_tok", where, 8, least=0),
        "expert_dim": whole(values, "moe_intermediate_size", where, 768, least=0),
        "normalize_experts": flag(values, "norm_topk_prob", where),
    }


def _whole(number: float) -> int | float:
    """Convert to an integer where the value is whole, as transformers insists."""
    return int(number) if number == int(number) else number
