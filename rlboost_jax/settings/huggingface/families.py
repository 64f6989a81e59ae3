"""Families of checkpoints: one row for each, with what sets it apart from a Llama.

A family whose blocks the decoder has is one row more; `huggingface.py` reads and writes by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Windows = Literal["none", "all", "late", "alternate", "five_of_six"]


@dataclass(frozen=True, kw_only=True)
class FamilyRow:
    """Keys that `config.json` of a model family has, and values that it takes for granted.

    Attributes:
        model_class: that transformers loads.
        qk_norm, norm_offset, post_norms, scale_embeddings: of every checkpoint; see `ModelConfig`.
        attention_bias, output_bias: the key that says so, or what it always is.
        numbers: fields of `ModelConfig` that are read besides sizes; transformers passes over the
            keys of the others.
        local_rope: whether layers with a window have rotary frequencies of their own.
        rope_theta: base of the others where nothing is said.
        activation_key: its value may be missing, which means `activation`.
        windows: layers that see a window if there is one, where `layer_types` is not read or
            missing: all, those from `max_window_layers` on, all but every second or every sixth.
        layer_types: whether a checkpoint can say it layer by layer.
        window_switch: whether there is a window only if `use_sliding_window` says so.
        experts: whether feed-forward layers can be experts.
        defaults: of keys that published files leave out.
    """

    model_class: str
    qk_norm: bool = False
    norm_offset: bool = False
    post_norms: bool = False
    scale_embeddings: bool = False
    attention_bias: str | bool = "attention_bias"
    output_bias: str | bool = "attention_bias"
    numbers: tuple[str, ...] = ()
    local_rope: bool = False
    rope_theta: float = 10_000.0
    activation_key: str = "hidden_act"
    activation: str = "silu"
    windows: Windows = "none"
    layer_types: bool = False
    window_switch: bool = False
    experts: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_QWEN: Final[Mapping[str, Any]] = {"windows": "late", "layer_types": True, "window_switch": True}
_GEMMA: Final[Mapping[str, Any]] = {
    "norm_offset": True,
    "post_norms": True,
    "scale_embeddings": True,
    "activation_key": "hidden_activation",
    "activation": "gelu_pytorch_tanh",
    "layer_types": True,
}
_GEMMA_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}

# By `model_type`. A model from scratch is exported as the first that can say what it is.
FAMILIES: Final[Mapping[str, FamilyRow]] = {
    "qwen2": FamilyRow(
        model_class="Qwen2ForCausalLM", attention_bias=True, output_bias=False, **_QWEN
    ),
    "qwen3": FamilyRow(
        model_class="Qwen3ForCausalLM", qk_norm=True, defaults={"head_dim": 128}, **_QWEN
    ),
    "qwen3_moe": FamilyRow(
        model_class="Qwen3MoeForCausalLM",
        qk_norm=True,
        windows="all",
        window_switch=True,
        experts=True,
    ),
    "llama": FamilyRow(model_class="LlamaForCausalLM"),
    "mistral": FamilyRow(
        model_class="MistralForCausalLM", windows="all", defaults={"num_key_value_heads": 8}
    ),
    "gemma2": FamilyRow(
        model_class="Gemma2ForCausalLM",
        numbers=("query_scalar", "attention_soft_cap", "final_soft_cap"),
        windows="alternate",
        defaults={
            **_GEMMA_DEFAULTS,
            "vocab_size": 256_000,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        **_GEMMA,
    ),
    "gemma3_text": FamilyRow(
        model_class="Gemma3ForCausalLM",
        qk_norm=True,
        numbers=("query_scalar", "final_soft_cap"),
        local_rope=True,
        windows="five_of_six",
        rope_theta=1_000_000.0,
        defaults={**_GEMMA_DEFAULTS, "vocab_size": 262_208},
        **_GEMMA,
    ),
    "seed_oss": FamilyRow(
        model_class="SeedOssForCausalLM",
        output_bias="attention_out_bias",
        defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    ),
}
