"""Whole config.json files, as they are published: no noise, and nothing that matters passes."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.huggingface.config import from_huggingface, to_huggingface
from rlboost_jax.settings.huggingface.generation import end_ids
from rlboost_jax.settings.model_config import ModelConfig
from tests.settings.test_huggingface import LLAMA, PUBLISHED

QWEN = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
}
GEMMA = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "use_cache": True,
}
# What published files say besides the keys of PUBLISHED.
REST: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B-Instruct": {**QWEN, "architectures": ["Qwen2ForCausalLM"]},
    "Qwen3-8B": {**QWEN, "architectures": ["Qwen3ForCausalLM"]},
    "Qwen3-30B-A3B": {
        **QWEN,
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "intermediate_size": 6144,
        "max_window_layers": 48,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
    },
    "Mistral-7B-v0.1": {**QWEN, "architectures": ["MistralForCausalLM"]},
    "gemma-2-2b": {
        **GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "sliding_window_size": 4096,
    },
    "gemma-3-1b-it": {
        **GEMMA,
        "architectures": ["Gemma3ForCausalLM"],
        "max_position_embeddings": 32768,
    },
    "Seed-OSS-36B-Instruct": {
        **QWEN,
        "architectures": ["SeedOssForCausalLM"],
        "attention_dropout": 0.1,
        "residual_dropout": 0.1,
    },
    "gemma-3-4b-it, its text": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    },
}


def read(values: dict[str, Any], where: str = "config.json") -> ModelConfig:
    return ModelConfig(source="", dtype="float32", **from_huggingface(values, where))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_without_a_word(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = PUBLISHED[name][1]
    assert read({**REST[name], **values}, f"{name}/config.json") == read(values)
    read(to_huggingface(read(values)), f"{name} again/config.json")
    assert warnings(caplog) == []


def test_a_key_that_nobody_knows_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        read({**LLAMA, "sparkle": 3, "sliding_window": 64, "zest": None}, "once/config.json")
    assert warnings(caplog) == ["once/config.json: passed over: sparkle, sliding_window"]
    text = PUBLISHED["gemma-3-4b-it, its text"][1]
    inner = {**text["text_config"], "sparkle": 3}
    read({**text, "text_config": inner, "glitter": 1}, "nested/config.json")
    assert warnings(caplog)[1:] == [
        "nested/config.json: passed over: glitter",
        "nested/config.json: passed over: sparkle",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logits_scaling": 8.0}, "logits_scaling is 8.0; that is not supported, only 1 is"),
        ({"residual_multiplier": 0.22}, "residual_multiplier is 0.22; that is not supported"),
        ({"is_causal": False}, "is_causal is False; that is not supported, only True is"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers is [1, 1, 1, 0]; that is not"),
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0; that is not supported"),
        ({"use_qk_norm": True}, "use_qk_norm is True; that is not supported, only False is"),
        ({"num_local_experts": 8}, "num_local_experts is 8; that is not supported, only 0 is"),
        ({"use_mrope": True}, "use_mrope is True; that is not supported, only False is"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3n_text"}},
            "model_type of text_config is 'gemma3n_text'; only 'gemma3_text' is supported",
        ),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is 8192; that is not supported"),
        ({"text_config": {"hidden_size": 3}}, "text_config is {'hidden_size': 3}; that is not"),
        ({"quantization_config": {"quant_method": "x" * 99}}, "quantization_config is {'quant_me"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; it must be true or"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"hidden_act": ["silu"]}, "hidden_act is ['silu']; known: silu"),
        ({"model_type": "qwen3", "use_sliding_window": "no"}, "use_sliding_window is 'no'; it"),
        (
            {"model_type": "gemma2", "layer_types": "full_attention"},
            "layer_types is 'full_attention'; it must be a list of names",
        ),
    ],
)
def test_what_would_change_logits_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**LLAMA, **changes})
    assert str(caught.value).startswith(f"config.json: {says}")
    assert "\n" not in str(caught.value)


def test_a_window_that_nobody_looks_through_may_be_anything() -> None:
    for changes in (
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 0},
        {"model_type": "llama", "sliding_window": 0},
    ):
        assert read({**LLAMA, **changes}).sliding_window == 0


def test_what_says_the_usual_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    usual = {
        "logits_scaling": 1.0,
        "is_causal": True,
        "partial_rotary_factor": None,
        "quantization_config": None,
        "num_local_experts": 0,
        "use_qk_norm": False,
        "layer_types": ["full_attention"] * 16,
        "mlp_only_layers": [],
    }
    assert read({**LLAMA, **usual}, "usual/config.json") == read(LLAMA)
    assert warnings(caplog) == []


def test_the_flag_of_a_model_with_vision_is_the_outer_one() -> None:
    text = PUBLISHED["gemma-3-4b-it, its text"][1]
    for outer, inner, tied in ((None, False, False), (False, None, False), (True, False, True)):
        values = {**text["text_config"], "tie_word_embeddings": inner}
        said = {**text, "text_config": values, "tie_word_embeddings": outer}
        assert read(said).tie_embeddings is tied
    assert read(text).tie_embeddings  # the family's default
    assert not read({k: v for k, v in LLAMA.items() if k[:3] != "tie"}).tie_embeddings


def test_what_transformers_writes_by_itself_is_read_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All keys of its classes, each of `GenerationConfig` with a value."""
    transformers = pytest.importorskip("transformers")
    families = "Qwen2 Qwen3 Qwen3Moe Llama Mistral Gemma2 Gemma3Text Gemma3 SeedOss"
    for family in families.split():
        values = getattr(transformers, f"{family}Config")().to_dict()
        from_huggingface(values, f"{family} of transformers/config.json")
    generation = dict.fromkeys(transformers.GenerationConfig().to_dict(), 1)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert end_ids(tmp_path) == (1,)
    assert warnings(caplog) == []
