"""Rope sections that others wrote: each key is used, or refused by name."""

import math
from typing import Any

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.huggingface.config import from_huggingface, to_huggingface
from rlboost_jax.settings.model_config import ModelConfig
from tests.settings.test_huggingface import PUBLISHED

PLAIN = {
    name: {k: v for k, v in PUBLISHED[published][1].items() if not k.startswith("rope")}
    for name, published in {
        "qwen3": "Qwen3-8B",
        "llama": "Llama-3.2-1B",
        "gemma3_text": "gemma-3-1b-it",
        "gemma2": "gemma-2-2b",
    }.items()
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
BY_FACTOR = 0.1 * math.log(4) + 1  # the paper's


def read(
    section: Any, family: str = "qwen3", key: str = "rope_scaling", **more: Any
) -> ModelConfig:
    values = {**PLAIN[family], key: section, **more}
    return ModelConfig(source="", dtype="float32", **from_huggingface(values, "config.json"))


@pytest.mark.parametrize(
    ("said", "factor"),
    [
        ({"attn_factor": 0.8782488562869419}, 1.0),  # DeepSeek-R1-0528-Qwen3-8B
        ({"attn_factor": 1}, BY_FACTOR),
        ({"attn_factor": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}, 0.5),
        ({"attn_factor": None, "attention_factor": 0.9}, 0.9),
        ({"attn_factor": 0.8782488562869419, "attention_factor": 1.0}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0}, BY_FACTOR),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),  # DeepSeek-V2
        ({"extrapolation_factor": 1, "finetuned": True, "truncate": True}, BY_FACTOR),
    ],
)
def test_yarn_scales_attention_as_its_file_means(said: dict[str, Any], factor: float) -> None:
    model = read({**YARN, **said})
    assert model.rope_attention_factor == pytest.approx(factor, abs=1e-6)
    written = to_huggingface(model)["rope_scaling"]  # for readers of either key
    assert written["attention_factor"] == model.rope_attention_factor
    assert written.get("attn_factor", 1.0) * BY_FACTOR == pytest.approx(factor, abs=1e-6)
    assert read(written) == model


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({**YARN, "attn_facto": 0.8}, "in a yarn rope: attn_facto is 0.8, and nothing here reads"),
        ({**YARN, "short_factor": [1.0]}, "short_factor is [1.0], and nothing here reads it"),
        ({**LLAMA3, "beta_fast": 32}, "in a llama3 rope: beta_fast is 32, and nothing"),
        ({**LLAMA3, "attention_factor": 1.2}, "in a llama3 rope: attention_factor is 1.2"),
        ({"type": "linear", "factor": 2, "alpha": 3}, "in a linear rope: alpha is 3"),
        ({"type": "linear", "factor": 2, "low_freq_factor": 1}, "low_freq_factor is 1"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "mrope_section is [16, 24, 24]"),
        ({"rope_type": "default", "factor": 4.0}, "factor is 4.0 in a default rope; that is not"),
        ({"factor": 4.0}, "factor is 4.0 in a default rope"),
        ({"rope_type": "dynamic", "factor": 4.0}, "rope type 'dynamic'; known: default, linear"),
        ({"type": "su", "short_factor": [1], "long_factor": [2]}, "rope type 'su'; known"),
        ({"rope_type": "longrope", "long_factor": [2]}, "rope type 'longrope'; known"),
        ({"rope_type": ["yarn"], "factor": 4.0}, "rope type ['yarn']; known"),
        ({**YARN, "type": "linear"}, "rope_type is 'yarn' and type is 'linear'; leave one"),
        ({**YARN, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5 in a yarn rope"),
        ({**YARN, "extrapolation_factor": 2}, "extrapolation_factor is 2 in a yarn rope"),
        ({**YARN, "apply_yarn_scaling": False}, "apply_yarn_scaling is False in a yarn rope"),
        ({**YARN, "attn_factor": "0.8"}, "attn_factor is '0.8'; it must be a number"),
        (
            {**YARN, "attn_factor": 0.5, "attention_factor": 1.0},
            "attention_factor is 1.0 and attn_factor makes it 0.569315; leave one of them",
        ),
        ({**YARN, "mscale": 0.707}, "mscale is 0.707 and mscale_all_dim is None, which readers"),
        ({**YARN, "mscale_all_dim": 1.0}, "mscale is None and mscale_all_dim is 1.0, which"),
        ({**YARN, "rope_theta": 2e4}, "rope_theta is 1000000 by rope_theta and 20000.0 by"),
        ([YARN], "rope_scaling is [{'rope_type'"),
    ],
)
def test_what_a_section_says_besides_is_refused_by_name(section: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(section, rope_theta=1000000)
    assert says in str(caught.value)
    assert str(caught.value).startswith("config.json: ") and "\n" not in str(caught.value)


def test_two_places_may_say_the_same_and_not_different_things() -> None:
    once = read(YARN, rope_theta=5e5)
    both = {**YARN, "rope_theta": 5e5}
    assert read(both, rope_theta=500_000) == once
    assert read(both, key="rope_parameters") == once
    assert read(both, key="rope_parameters", rope_scaling=YARN) == once
    assert read({**YARN, "type": "yarn"}, rope_theta=5e5) == once
    shorter = {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}
    place = {"original_max_position_embeddings": 32768, "max_position_embeddings": 131072}
    assert read(shorter, rope_theta=5e5, **place) == once  # at the top, as Phi has it
    assert read(shorter, rope_theta=5e5, max_position_embeddings=32768) == once
    for section, more, says in (
        (both, {"rope_scaling": {**YARN, "factor": 2}}, "factor is 2 by rope_scaling and 4.0 by"),
        (both, {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type is 'yarn' and type"),
        (both, {"rope_theta": 1e4}, "rope_theta is 10000.0 by rope_theta and 500000.0 by rope_p"),
        (
            both,
            {"original_max_position_embeddings": 4096},
            "original_max_position_embeddings is 4096 by config.json and 32768 by its section",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            read(section, key="rope_parameters", **more)
        assert says in str(caught.value)


def test_sections_of_layers_by_their_types() -> None:
    """Only Gemma 3 has two kinds; its own bases are where nothing is said."""
    model = read({"sliding_attention": {"rope_type": "default"}}, "gemma3_text", "rope_parameters")
    assert (model.rope_theta, model.local_rope_theta) == (1e6, 1e4)
    far, near = {"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 2e4}
    layered = {"full_attention": far, "sliding_attention": near}
    model = read(layered, "gemma3_text", "rope_parameters")
    assert (model.rope_theta, model.local_rope_theta) == (5e5, 2e4)
    same = {"full_attention": far, "sliding_attention": far}
    assert read(same, "gemma2", "rope_parameters").rope_theta == 5e5
    for family, section, more, says in (
        ("gemma2", layered, {}, "a gemma2 has one kind for both"),
        ("qwen3", layered, {}, "a qwen3 has one kind for both"),
        ("gemma3_text", {**layered, "chunked_attention": {}}, {}, "chunked_attention is {}"),
        ("gemma3_text", {**layered, "rope_theta": 1e4}, {}, "rope_theta is 10000.0, and nothing"),
        (
            "gemma3_text",
            {**layered, "sliding_attention": {"rope_type": "linear", "factor": 2}},
            {},
            "rope type 'linear' of layers with a window; known: default",
        ),
        (
            "gemma3_text",
            {**layered, "sliding_attention": {"mystery": 1}},
            {},
            "in a default rope: mystery is 1, and nothing here reads it",
        ),
        (
            "gemma3_text",
            layered,
            {"rope_local_base_freq": 1e4},
            "rope_theta is 10000.0 by rope_local_base_freq and 20000.0 by rope_parameters",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            read(section, family, "rope_parameters", **more)
        assert says in str(caught.value)
