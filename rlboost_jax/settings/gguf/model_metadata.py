"""A GGUF file's metadata as the `config.json` that the same model has in Hugging Face's format.

Architectures are llama.cpp's. A key that would change what the model computes and is not used is
refused by name; a key that nobody here knows is named in a warning.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import report_unknown
from rlboost_jax.settings.gguf.container import ARCHITECTURE, Container

TABLE: Final = "token_embd.weight"
HEAD: Final = "output.weight"
ROPE_TABLE: Final = "rope_freqs.weight"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How llama.cpp stores a family of models.

    Attributes:
        family: `model_type` of the config.json.
        interleaved: whether rows of queries and keys alternate between the halves of a head.
        offset_norms: whether the scales of norms are stored with 1 added.
        post_norms: whether there are norms behind attention and feed-forward layers.
        wide_layers: number of layers of the size whose queries are scaled by hidden size over heads
            instead of the head's width: 27B models of Gemma, told from others by this number.
        defaults: keys of config.json that every model of the family has.
    """

    family: str
    interleaved: bool = False
    offset_norms: bool = False
    post_norms: bool = False
    wide_layers: int = 0
    defaults: Mapping[str, Any] | None = None


_GEMMA: Final[Mapping[str, Any]] = {"offset_norms": True, "post_norms": True}
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(family="llama", interleaved=True),
    "qwen2": Architecture(family="qwen2"),
    "qwen3": Architecture(family="qwen3"),
    "qwen3moe": Architecture(family="qwen3_moe", defaults={"norm_topk_prob": True}),
    "gemma2": Architecture(family="gemma2", wide_layers=46, **_GEMMA),
    "gemma3": Architecture(family="gemma3_text", wide_layers=62, **_GEMMA),
}
# Metadata key without its architecture, and the key of config.json.
_SIZES: Final = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_NUMBERS: Final = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SCALING: Final = "rope.scaling."
_YARN: Final = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attn_factor": "attn_factor",
}
_READ_BELOW: Final = (
    *("vocab_size", "rope.dimension_count", "attention.value_length", "attention.causal"),
    *("attention.sliding_window_pattern", "rope.scaling.type", "rope.scaling.finetuned"),
)
_MOST: Final = 2**31  # of sizes and ids
_LLAMA3: Final = 1.0, 4.0, 8192  # low and high frequency factor, original positions
_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def architecture_of(container: Container) -> Architecture:
    """Return the row of `ARCHITECTURES`; raises ConfigError."""
    name = container.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(
            f"{container.path}: {ARCHITECTURE} is {name!r}; known are "
            f"{', '.join(ARCHITECTURES)}; convert others with transformers (gguf_file=) and "
            "save_pretrained"
        )
    return ARCHITECTURES[name]


def config_values(container: Container) -> dict[str, Any]:
    """The contents of a config.json for the model in a file.

    Raises:
        ConfigError: an architecture that is not known, or a value that is missing or asks for what
            is not done.
    """
    row, where = architecture_of(container), str(container.path)
    own = _own(container)
    if TABLE not in container.tensors or len(container.tensors[TABLE].shape) != 2:
        raise ConfigError(f"{where}: there is no matrix {TABLE}; is the file a whole model?")
    found: dict[str, Any] = {"model_type": row.family, **(row.defaults or {})}
    found["vocab_size"] = container.tensors[TABLE].shape[0]
    found["tie_word_embeddings"] = HEAD not in container.tensors
    for key, name in {**_SIZES, **_NUMBERS}.items():
        if key in own:
            found[name] = _plain(own[key], key, where)
        if key in _SIZES and not _is_size(found.get(name, 0)):
            raise ConfigError(
                f"{where}: {key} is {found[name]!r}; it must be a whole number below {_MOST:,}"
            )
    if not found.get("num_experts"):
        found = {key: value for key, value in found.items() if "expert" not in key}
    heads, width = found.get("num_attention_heads"), found.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(width, int) or heads < 1:
        raise ConfigError(f"{where}: attention.head_count or embedding_length is missing")
    head_dim = found.setdefault("head_dim", width // heads)
    if head_dim % 2:
        raise ConfigError(f"{where}: heads have {head_dim} numbers, and rotary ones are in pairs")
    for key in ("attention.value_length", "rope.dimension_count"):
        if key in own and _plain(own[key], key, where) != head_dim:
            raise ConfigError(f"{where}: {key} is {own[key]!r}, and heads have {head_dim} numbers")
    if (causal := own.get("attention.causal", True)) is not True:
        raise ConfigError(f"{where}: attention.causal is {causal!r}; only causal models are read")
    if row.offset_norms:
        wide = found.get("num_hidden_layers") == row.wide_layers
        found["query_pre_attn_scalar"] = width // heads if wide else head_dim
    found |= _windows(own, row, where) | _rope(container, own, found, where)
    report_unknown(own, {*_SIZES, *_NUMBERS, *_READ_BELOW, *(_SCALING + k for k in _YARN)}, where)
    return {**found, **_marks(container)}


def end_marks(container: Container) -> tuple[int, ...]:
    """Ids that end a response: of a text, of a turn, of a message."""
    ids = (container.metadata.get(f"tokenizer.ggml.{name}") for name in _ENDS)
    return tuple(dict.fromkeys(i for i in ids if _is_size(i)))


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _own(container: Container) -> dict[str, Any]:
    """Metadata of the architecture, without its name in the keys."""
    prefix = f"{container.metadata[ARCHITECTURE]}."
    return {
        key.removeprefix(prefix): value
        for key, value in container.metadata.items()
        if key.startswith(prefix)
    }


def _plain(value: Any, key: str, where: str) -> Any:
    """Return a number; of a list per layer, the one value that all layers share."""
    if isinstance(value, np.ndarray):
        if len({*value.tolist()}) != 1:
            raise ConfigError(f"{where}: {key} differs from layer to layer; that is not supported")
        value = value[0].item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be a number")
    return value


def _windows(own: Mapping[str, Any], row: Architecture, where: str) -> dict[str, Any]:
    """Return which layers see a window, where the file says more than the family does."""
    if "attention.sliding_window" not in own or row.family not in ("gemma2", "gemma3_text"):
        key = "attention.sliding_window"
        if key in own and _plain(own[key], key, where):
            raise ConfigError(
                f"{where}: {key} is {own[key]!r} in a {row.family}; that is not supported"
            )
        return {"sliding_window": None}
    pattern = own.get("attention.sliding_window_pattern")
    if pattern is None:
        return {}
    if isinstance(pattern, int) and not isinstance(pattern, bool) and row.family == "gemma3_text":
        return {"sliding_window_pattern": pattern}
    if isinstance(pattern, np.ndarray):
        kinds = ("full_attention", "sliding_attention")
        return {"layer_types": [kinds[bool(window)] for window in pattern.tolist()]}
    raise ConfigError(f"{where}: attention.sliding_window_pattern is {pattern!r}")


def _rope(
    container: Container, own: Mapping[str, Any], found: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """`rope_scaling` of config.json."""
    kind = own.get("rope.scaling.type", "none")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: rope.scaling.type is {kind!r}; known: none, linear, yarn")
    if ROPE_TABLE in container.tensors:
        if kind != "none":
            raise ConfigError(f"{where}: {ROPE_TABLE} beside rope.scaling.type {kind!r}")
        return {"rope_scaling": _llama3(container, found)}
    said = {
        name: _plain(own[_SCALING + key], _SCALING + key, where)
        for key, name in _YARN.items()
        if _SCALING + key in own
    }
    if kind == "none":
        return {}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": said.get("factor")}}
    if kind == "yarn":
        return {"rope_scaling": {"rope_type": "yarn", **said}}
    raise ConfigError(f"{where}: rope.scaling.type is {kind!r}; known: none, linear, yarn")


def _llama3(container: Container, found: Mapping[str, Any]) -> dict[str, Any]:
    """The section of Llama 3's scaling, of which a file has the table that follows from it.

    All published ones share every number but the factor, which is the table's largest entry; a
    table that does not follow from these is refused.
    """
    from rlboost_jax.settings.gguf.quantized import Blocks

    tensor = container.tensors[ROPE_TABLE]
    width, theta = found["head_dim"], float(found.get("rope_theta", 10_000.0))
    if tensor.shape != (width // 2,) or theta <= 1:
        raise ConfigError(f"{container.path}: {ROPE_TABLE} has shape {list(tensor.shape)}")
    table = np.asarray(Blocks(tensor)[:], np.float64)
    low, high, original = _LLAMA3
    factor = float(round(table.max(), 6))
    wavelengths = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    share = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - share) / factor + share)
    if not np.allclose(table, expected, rtol=1e-4):
        raise ConfigError(
            f"{container.path}: {ROPE_TABLE} is not the table of Llama 3's scaling with factor "
            f"{factor:g}, frequency factors {low:g} and {high:g} and {original} positions; that is "
            "not supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _marks(container: Container) -> dict[str, Any]:
    ends = end_marks(container)
    names = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
    ids = {key: container.metadata.get(f"tokenizer.ggml.{name}") for key, name in names.items()}
    return {
        **{key: value if _is_size(value) else None for key, value in ids.items()},
        "eos_token_id": list(ends) if len(ends) > 1 else ends[0] if ends else None,
    }
