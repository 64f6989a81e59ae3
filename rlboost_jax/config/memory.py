"""How many bytes the parts of a run take, from the configuration alone. Touches no device.

The dry run prints these, and the engine divides a device's memory by them (`engine/memory.py`).
"""

import dataclasses
import math
from typing import Final

from rlboost_jax.config.records import EngineConfig, ModelConfig, RunConfig

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


def num_parameters(model: ModelConfig) -> int:
    """Parameters of the decoder, tied tensors once; all experts, used or not."""
    E, D = model.embed_dim, model.head_dim
    H, K, X = model.num_query_heads, model.num_key_heads, model.num_experts
    attention = 2 * E * H * D + 2 * E * K * D
    biases = (H + 2 * K) * D * model.attention_bias + E * model.output_bias
    norms = (4 if model.post_norms else 2) * E + (2 * D if model.qk_norm else 0)
    feed_forward = E * X + X * 3 * E * model.expert_dim if X else 3 * E * model.hidden_dim
    layers = model.num_layers * (attention + biases + norms + feed_forward)
    return layers + E + model.vocab_size * E * (1 if model.tie_embeddings else 2)


def share_of(model: ModelConfig, devices: int) -> ModelConfig:
    """What each device has of a model that is split over several (`engine.tensor_parallel`)."""
    split = ("vocab_size", "num_query_heads", "num_key_heads", "hidden_dim", "num_experts")
    shares = {name: getattr(model, name) // devices for name in split}
    return dataclasses.replace(model, **shares)


def weight_bytes(model: ModelConfig, dtype: str) -> int:
    """One copy of the parameters."""
    return num_parameters(model) * BYTES[dtype]


def pages_per_slot(engine: EngineConfig, slot_tokens: int) -> int:
    """Pages of the longest rollout."""
    return math.ceil(slot_tokens / engine.page_size)


def page_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Keys and values of one page in all layers."""
    per_layer = engine.page_size * 2 * model.num_key_heads * model.head_dim
    return model.num_layers * per_layer * BYTES[engine.kv_dtype]


def most_pages(engine: EngineConfig, slot_tokens: int) -> int:
    """Pages in an engine's pool where memory is no limit."""
    return engine.num_pages or engine.slots * pages_per_slot(engine, slot_tokens)


def moment_bytes(config: RunConfig) -> int:
    """AdamW's two moments, wherever they lie."""
    return 2 * weight_bytes(config.model, config.learner.moment_dtype)


def learner_bytes(config: RunConfig) -> dict[str, int]:
    """Float32 parameters and what training keeps beside them, over all devices of the mesh.

    Moments that lie on the host are not counted: while an update is computed they are part of
    its working space.
    """
    parameters = 4 * num_parameters(config.model)
    micro_batches = config.learner.prompts_per_step // config.learner.micro_batch_prompts
    # One just computed, one of its micro-batch, and the partial sums of `learner/gradients.py`,
    # of which there are as many as a counter of the micro-batches has digits, less one.
    trees = 1 + micro_batches.bit_length()
    parts = {
        "parameters": parameters,
        "gradients": trees * parameters,
    }
    if config.learner.moment_memory == "device":
        parts["optimizer"] = moment_bytes(config)
    if config.algorithm.has_reference:
        parts["reference"] = parameters
    if config.algorithm.has_critic:
        model = dataclasses.replace(config.model, tie_embeddings=True)
        of_critic = 4 * (num_parameters(model) + model.embed_dim)
        parts["critic"] = (3 + trees) * of_critic
    return parts


def learner_bytes_per_device(config: RunConfig) -> int:
    """`learner_bytes` on each device: data parallel ones hold the same, others a share."""
    _, fsdp, tensor = config.learner.mesh
    return math.ceil(sum(learner_bytes(config).values()) / (fsdp * tensor))


def size_text(count: float) -> str:
    """Bytes for people: `size_text(1536)` is "1.5 KiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"
