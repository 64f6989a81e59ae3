"""Sizes of an architecture and its adapters that contradict each other: one line per mistake."""

from collections.abc import Iterator

from rlboost_jax.settings.model_config import ATTENTION_TARGETS, LORA_TARGETS, ModelConfig


def model_mistakes(model: ModelConfig) -> Iterator[str]:
    """Yield a line per contradiction in the model's settings, whose ranges are checked before."""
    decided = f" (config.json of model.source {model.source!r} decides it)" if model.source else ""
    yield from (f"{line}{decided}" for line in _contradictions(model))


def _contradictions(model: ModelConfig) -> Iterator[str]:
    if model.num_query_heads % model.num_key_heads:
        yield (
            f"model.num_query_heads is {model.num_query_heads}, not a multiple of "
            f"model.num_key_heads ({model.num_key_heads}); change one of them"
        )
    if model.head_dim % 2:
        yield f"model.head_dim is {model.head_dim}; rotary positions need an even number"
    pattern = model.attention_pattern
    if not pattern or set(pattern) - set("GL"):
        yield f'model.attention_pattern is {pattern!r}; write "G" and "L", such as "LLLLLG"'
    elif ("L" in pattern) != (model.sliding_window > 0):
        yield (
            f"model.sliding_window is {model.sliding_window} and model.attention_pattern "
            f'{pattern!r}; layers "L" need a window of at least 1 token, and there is none without'
        )
    low, high = model.rope_low_frequency_factor, model.rope_high_frequency_factor
    if model.rope_scaling in ("llama3", "yarn") and not low < high:
        yield (
            f"model.rope_low_frequency_factor is {low}; choose less than "
            f"model.rope_high_frequency_factor ({high})"
        )
    if model.rope_attention_factor != 1 and model.rope_scaling != "yarn":
        yield (
            f"model.rope_attention_factor is {model.rope_attention_factor}, which belongs to "
            f"rope_scaling 'yarn' and not to {model.rope_scaling!r}; leave it at 1"
        )
    if model.num_experts:
        if not 1 <= model.experts_per_token <= model.num_experts:
            yield (
                f"model.experts_per_token is {model.experts_per_token}; choose 1 to "
                f"model.num_experts ({model.num_experts})"
            )
        if model.expert_dim < 1:
            yield f"model.expert_dim is {model.expert_dim}; experts need a width of at least 1"


def lora_mistakes(model: ModelConfig) -> Iterator[str]:
    lora = model.lora
    if lora.source and not model.source:
        yield (
            f"model.lora.source is {lora.source!r} and model.source is empty; name the checkpoint "
            "that the adapter belongs to"
        )
    if not lora.rank:
        return
    if not lora.targets:
        yield f"model.lora.targets is empty; name some of {', '.join(LORA_TARGETS)}"
    if len(set(lora.targets)) < len(lora.targets):
        yield f"model.lora.targets is {lora.targets}; name each of them once"
    for name in lora.targets:
        if name not in LORA_TARGETS:
            yield (
                f"model.lora.targets has {name!r}, which can have no adapter; known: "
                f"{', '.join(LORA_TARGETS)}"
            )
        elif model.num_experts and name not in ATTENTION_TARGETS:
            yield (
                f"model.lora.targets has {name!r}, but the feed-forward layers are experts, which "
                f"can have no adapter: choose from {', '.join(ATTENTION_TARGETS)}"
            )
