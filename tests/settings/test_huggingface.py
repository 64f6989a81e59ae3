"""config.json of published checkpoints: their fields, and the parameters they are known to have."""

from dataclasses import replace
from typing import Any

import pytest

from configs import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.huggingface.config import from_huggingface, to_huggingface
from rlboost_jax.settings.huggingface.families import FAMILIES
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.validation.run_checks import check_model

# What the published files say, in the older form, less what no reader of them needs. The numbers
# of parameters are those of their safetensors.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Qwen2.5-0.5B-Instruct": (
        494_032_768,
        {
            "model_type": "qwen2",
            "hidden_act": "silu",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "max_window_layers": 21,
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
    ),
    "Qwen3-8B": (
        8_190_735_360,
        {
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_window_layers": 36,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {
            "model_type": "qwen3_moe",
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "vocab_size": 151936,
        },
    ),
    "Llama-3.2-1B": (
        1_235_814_400,
        {
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "mlp_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "vocab_size": 128256,
        },
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {
            "model_type": "mistral",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
    ),
    "gemma-2-2b": (
        2_614_341_888,
        {
            "model_type": "gemma2",
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
    ),
    "gemma-3-1b-it": (
        999_885_952,
        {
            "model_type": "gemma3_text",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "vocab_size": 262144,
        },
    ),
    "Seed-OSS-36B-Instruct": (
        36_151_104_512,
        {
            "model_type": "seed_oss",
            "attention_bias": True,
            "attention_out_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "mlp_bias": False,
            "num_attention_heads": 80,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {"rope_type": "default"},
            "rope_theta": 10000000.0,
            "tie_word_embeddings": False,
            "vocab_size": 155136,
        },
    ),
    "gemma-3-4b-it, its text": (
        3_880_263_168,
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
    ),
}
LLAMA = PUBLISHED["Llama-3.2-1B"][1]


@pytest.fixture
def scratch() -> ModelConfig:
    return run_config(base.get_config()).model


def read(values: dict[str, Any]) -> ModelConfig:
    return ModelConfig(source="", dtype="float32", **from_huggingface(values, "config.json"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_have_the_parameters_they_are_known_for(name: str) -> None:
    count, values = PUBLISHED[name]
    assert num_parameters(read(values)) == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_written_is_read_as_the_same(name: str) -> None:
    model = read(PUBLISHED[name][1])
    assert read(to_huggingface(model)) == model


def test_of_every_family_something_is_published() -> None:
    assert {read(values).family for _, values in PUBLISHED.values()} == set(FAMILIES)


def test_what_sets_families_apart() -> None:
    models = {name: read(values) for name, (_, values) in PUBLISHED.items()}
    qwen2, gemma3 = models["Qwen2.5-0.5B-Instruct"], models["gemma-3-1b-it"]
    assert (qwen2.head_dim, qwen2.attention_bias, qwen2.output_bias) == (64, True, False)
    assert (qwen2.sliding_window, qwen2.attention_pattern, qwen2.qk_norm) == (0, "G", False)
    assert models["Qwen3-8B"].qk_norm and not models["Qwen3-8B"].attention_bias
    assert (gemma3.attention_pattern, gemma3.sliding_window) == ("LLLLLG", 512)
    assert gemma3.layer_windows[:7] == (512,) * 5 + (0, 512) and len(gemma3.layer_windows) == 26
    assert (gemma3.rope_theta, gemma3.local_rope_theta) == (1e6, 1e4)
    assert gemma3.norm_offset and gemma3.post_norms and gemma3.scale_embeddings
    assert gemma3.activation == "gelu_tanh" and gemma3.tie_embeddings
    gemma2 = models["gemma-2-2b"]
    assert (gemma2.attention_soft_cap, gemma2.final_soft_cap) == (50, 30)
    assert (gemma2.attention_pattern, gemma2.local_rope_theta) == ("LG", 0)
    text = models["gemma-3-4b-it, its text"]
    assert (text.rope_scaling, text.rope_factor, text.sliding_window) == ("linear", 8, 1024)
    llama = models["Llama-3.2-1B"]
    assert (llama.rope_scaling, llama.rope_factor) == ("llama3", 32)
    assert (llama.rope_low_frequency_factor, llama.rope_high_frequency_factor) == (1, 4)
    mistral = models["Mistral-7B-v0.1"]
    assert (mistral.attention_pattern, mistral.sliding_window) == ("L", 4096)
    moe = models["Qwen3-30B-A3B"]
    assert (moe.num_experts, moe.experts_per_token, moe.expert_dim) == (128, 8, 768)


def test_both_ways_of_writing_positions_say_the_same() -> None:
    newer = {k: v for k, v in LLAMA.items() if not k.startswith("rope")}
    newer["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": LLAMA["rope_theta"]}
    assert read(newer) == read(LLAMA)
    gemma = PUBLISHED["gemma-3-4b-it, its text"][1]["text_config"]
    layered = {k: v for k, v in gemma.items() if k != "rope_scaling"}
    layered["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert read(layered) == read(gemma)


def test_yarn_as_qwen_s_cards_say_it() -> None:
    """Defaults are those of transformers: turns of 1 and 32, and 0.1 ln(factor) + 1."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = read({**PUBLISHED["Qwen3-8B"][1], "rope_scaling": scaling})
    assert (model.rope_scaling, model.rope_factor) == ("yarn", 4)
    assert (model.rope_low_frequency_factor, model.rope_high_frequency_factor) == (1, 32)
    assert model.rope_original_positions == 32768
    assert model.rope_attention_factor == pytest.approx(1.138629436)
    assert read(to_huggingface(model)) == model
    weighted = {**scaling, "mscale": 1.0, "mscale_all_dim": 0.5}
    model = read({**PUBLISHED["Qwen3-8B"][1], "rope_scaling": weighted})
    assert model.rope_attention_factor == pytest.approx(1.138629436 / 1.069314718)
    with pytest.raises(ConfigError, match=r"rope_attention_factor is .* belongs to rope_scaling"):
        check_model(replace(model, rope_scaling="linear"))


def test_layer_types_become_the_shortest_pattern() -> None:
    values = PUBLISHED["Qwen3-8B"][1]
    kinds = ["full_attention", "sliding_attention", "sliding_attention"] * 12
    windows = {"use_sliding_window": True, "sliding_window": 64, "layer_types": kinds}
    assert read({**values, **windows}).attention_pattern == "GLL"
    some = {**windows, "layer_types": None, "max_window_layers": 34}
    assert read({**values, **some}).attention_pattern == "G" * 34 + "LL"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; known are qwen2, qwen3"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_size": None}, "hidden_size is missing; a llama needs it"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; known: silu"),
        ({"mlp_bias": True}, "mlp_bias is True; that is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4}}, "rope type 'dynamic'; known: default"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing; a rope needs it"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "original_max_position_embeddings is missing; a rope needs it",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "truncate": False}},
            "truncate is False in a yarn rope; that is not supported",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; it must be a section"),
        (
            {"vocab_size": "many"},
            "vocab_size is 'many'; it must be a whole number from 1 to 2147483647",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number"),
        ({"head_dim": 2.5}, "head_dim is 2.5; it must be a whole number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; it must be a number of at least 0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan; it must be a number"),
        (
            {"model_type": "mistral", "sliding_window": -1},
            "sliding_window is -1; it must be a whole number",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor is 0.5; that is not supported, only 1 is",
        ),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        (
            {"model_type": "gemma2", "layer_types": ["chunked_attention"] * 16},
            "layer type 'chunked_attention'; known: full_attention",
        ),
        (
            {"model_type": "gemma2", "layer_types": ["full_attention"] * 3},
            "layer_types has 3 entries and num_hidden_layers is 16",
        ),
    ],
)
def test_what_is_not_done_is_a_line_that_names_the_key(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**LLAMA, **changes})
    assert str(caught.value).startswith(f"config.json: {says}")
    assert "\n" not in str(caught.value)


def test_a_model_from_scratch_is_written_as_what_can_say_it(scratch: ModelConfig) -> None:
    assert to_huggingface(scratch)["architectures"] == ["Qwen3ForCausalLM"]
    plain = replace(scratch, qk_norm=False)
    assert to_huggingface(plain)["architectures"] == ["LlamaForCausalLM"]
    windows = replace(plain, sliding_window=8, attention_pattern="L")
    assert to_huggingface(windows)["architectures"] == ["MistralForCausalLM"]
    odd = replace(scratch, post_norms=True)
    with pytest.raises(ConfigError, match=r"config\.model\.post_norms is True; a checkpoint of"):
        to_huggingface(odd)
