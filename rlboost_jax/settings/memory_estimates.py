"""How many bytes the parts of a run take, from the configuration alone. Touches no device.

The dry run prints these, and the engine divides a device's memory by them
(`engine/device_memory.py`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig

# The learner's attention: of rows up to this many tokens all scores are made at once, of longer
# ones block by block (`models/attention.py`).
MOST_DENSE_TOKENS: Final = 256
MOST_BLOCK: Final = 512  # tokens: few and large products, for devices that start each of them
ATTENTION_BLOCKS: Final = {
    "cpu": 128
}  # by platform, where smaller ones are better: they fit caches
# Rows of an expert begin at multiples of this, see `rlboost_kernels.grouped.layout`.
EXPERT_TILE: Final = 128
# Rows that are computed at once, in units of what a device has if all experts have equally many.
EXPERT_SPARE: Final = 1.25
# Logits of a block of rows, in the learner's log-probabilities; a longer row is whole all the same.
MOST_LOGITS: Final = 2**28  # a GiB: each block reads the matrix and the sums of its gradient
LOGIT_BLOCKS: Final = {"cpu": 2**24}  # by platform, where smaller ones are better
LEAST_LOGIT_ROWS: Final = 128
# Numbers in an output matrix from which on the learner, on one CPU, computes logits of sampled
# targets only and reads a tied matrix without a transposed copy. Below it, gathering rows gains
# little, and all bits stay what they were.
LARGE_HEAD: Final = 2**26
BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


def num_parameters(model: ModelConfig) -> int:
    """Count the parameters of the decoder: tied tensors once, and all experts."""
    E, D = model.embed_dim, model.head_dim
    H, K, X = model.num_query_heads, model.num_key_heads, model.num_experts
    attention = 2 * E * H * D + 2 * E * K * D
    biases = (H + 2 * K) * D * model.attention_bias + E * model.output_bias
    norms = (4 if model.post_norms else 2) * E + (2 * D if model.qk_norm else 0)
    feed_forward = E * X if X else 3 * E * model.hidden_dim
    layers = model.num_layers * (attention + biases + norms + feed_forward)
    table = model.vocab_size * E * (1 if model.tie_embeddings else 2)
    return layers + expert_parameters(model) + E + table


def expert_parameters(model: ModelConfig) -> int:
    """Count the parameters of all experts of all layers; 0 in a model without."""
    return model.num_layers * model.num_experts * 3 * model.embed_dim * model.expert_dim


def num_adapter_parameters(model: ModelConfig) -> int:
    """Count the parameters of all adapters; 0 where everything is trained."""
    E, D, F = model.embed_dim, model.head_dim, model.hidden_dim
    queries, keys = model.num_query_heads * D, model.num_key_heads * D
    sizes = {  # in + out
        "q_proj": E + queries,
        "k_proj": E + keys,
        "v_proj": E + keys,
        "o_proj": queries + E,
        "gate_proj": E + F,
        "up_proj": E + F,
        "down_proj": F + E,
    }
    return model.num_layers * model.lora.rank * sum(sizes[t] for t in model.lora.targets)


def num_trained_parameters(model: ModelConfig) -> int:
    """Count the trained parameters: adapters where there are some, else all."""
    return num_adapter_parameters(model) or num_parameters(model)


def share_of(model: ModelConfig, devices: int) -> ModelConfig:
    """Each device's share of a model that is split over several (`engine.tensor_parallel`)."""
    split = ("vocab_size", "num_query_heads", "num_key_heads", "hidden_dim", "num_experts")
    shares = {name: getattr(model, name) // devices for name in split}
    return dataclasses.replace(model, **shares)


def weight_bytes(model: ModelConfig, dtype: str) -> int:
    """Bytes of one copy of the parameters."""
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
    """Bytes of AdamW's two moments, on devices or on the host."""
    return 2 * num_trained_parameters(config.model) * BYTES[config.learner.moment_dtype]


def learner_bytes(config: RunConfig) -> dict[str, int]:
    """Bytes of float32 parameters and training state, over all devices of the mesh.

    With adapters, `parameters` are these; what they are added to is the `base`, in the dtype of
    activations. A critic is trained whole in any case. Moments that lie on the host are not
    counted: while an update is computed they are part of its working space.
    """
    parameters = 4 * num_trained_parameters(config.model)
    micro_batches = config.learner.prompts_per_step // config.learner.micro_batch_prompts
    # One just computed, one of its micro-batch, and the partial sums of
    # `learner/update/tree_sum.py`: one fewer than the binary digits of the number of
    # micro-batches.
    trees = 1 + micro_batches.bit_length()
    parts = {
        "parameters": parameters,
        "gradients": trees * parameters,
    }
    if config.model.lora.rank:
        parts = {"base": weight_bytes(config.model, config.model.dtype), **parts}
    if config.learner.moment_memory == "device":
        parts["optimizer"] = moment_bytes(config)
    if config.algorithm.has_reference:
        parts["reference"] = parameters
    if config.algorithm.lag:
        parts["older version"] = (
            num_trained_parameters(config.model) * BYTES[config.weights.rollout_dtype]
        )
    if config.algorithm.has_critic:
        model = dataclasses.replace(config.model, tie_embeddings=True)
        of_critic = 4 * (num_parameters(model) + model.embed_dim)
        parts["critic"] = (3 + trees) * of_critic
    return parts


def learner_bytes_per_device(config: RunConfig) -> int:
    """`learner_bytes` on each device: data parallel ones hold the same, others a share."""
    _, fsdp, tensor = config.learner.mesh
    return math.ceil(sum(learner_bytes(config).values()) / (fsdp * tensor))


def attention_bytes_per_device(config: RunConfig) -> int:
    """Bytes of attention scores that the learner holds at once, in float32.

    They are of all pairs of tokens of a row, or of two blocks, and of all rows that a device has of
    a packed batch.

    While they become weights there are two or three of these.
    """
    data, fsdp, tensor = config.learner.mesh
    rows = math.ceil(config.pack_rows / (data * fsdp))
    heads = math.ceil(config.model.num_query_heads / tensor)
    how, tokens = config.learner.attention, config.row_tokens
    if how == "chunked" or (how != "dense" and tokens > MOST_DENSE_TOKENS):
        tokens = min(tokens, MOST_BLOCK)
    return 4 * rows * heads * tokens**2


def expert_rows(choices: int, held: int, parts: int) -> int:
    """Rows that a layer of experts computes at once; all of them if experts are not split.

    Args:
        choices: of all tokens that a device has.
        held: experts of a device.
        parts: devices that have different experts.
    """
    most = choices + min(choices, held) * (EXPERT_TILE - 1)
    if parts > 1:
        expected = choices / parts + held * EXPERT_TILE / 2
        most = min(most, math.ceil(EXPERT_SPARE * expected / EXPERT_TILE) * EXPERT_TILE)
    return most // EXPERT_TILE * EXPERT_TILE


def expert_bytes_per_device(config: RunConfig) -> int:
    """Bytes of one layer's experts while their gradient is computed; 0 in a model without.

    Of rows: those that go in and come back, the gradients of both, and 6 arrays as wide as the
    hidden layer. Of matrices: all of a device's experts as they were gathered and side by side, and
    the same of their gradients.
    """
    model, (_, fsdp, tensor) = config.model, config.learner.mesh
    if not model.num_experts:
        return 0
    parts = tensor if model.num_experts % tensor == 0 else 1
    tokens = tokens_per_device(config)
    held = model.num_experts // parts
    rows = expert_rows(tokens * model.experts_per_token, held, parts)
    widths = 3 * model.embed_dim + 6 * model.expert_dim
    matrices = 3 * held * model.embed_dim * model.expert_dim
    copies = 4 if fsdp > 1 else 2
    return (rows * widths + copies * matrices) * BYTES[model.dtype]


def activation_bytes_per_device(config: RunConfig) -> int:
    """Bytes that layers keep for the gradient of a packed batch, plus one layer's at work.

    What a fused kernel keeps counts even where there is none.
    """
    return math.ceil(_kept_by_layers(config) + _layer_at_work(config))


def _kept_by_layers(config: RunConfig) -> float:
    model, tensor = config.model, config.learner.mesh[2]
    E, F = model.embed_dim, 0 if model.num_experts else model.hidden_dim
    queries, keys = model.num_query_heads * model.head_dim, model.num_key_heads * model.head_dim
    products = 2 * E + (queries + 2 * keys + 2 * F) / tensor
    kept = {
        "full": 0.0,
        "attention": queries / tensor,
        "dots": queries / tensor + products,
        "none": queries / tensor + 2 * products,
    }
    numbers = model.num_layers * (E + kept[config.learner.remat])
    return tokens_per_device(config) * BYTES[model.dtype] * numbers


def _layer_at_work(config: RunConfig) -> float:
    """Bytes of the backward pass of one layer, less the scores of attention and experts."""
    model, tensor = config.model, config.learner.mesh[2]
    F = 0 if model.num_experts else model.hidden_dim
    numbers = tokens_per_device(config) * (8 * model.embed_dim + 5 * F / tensor)
    return numbers * BYTES[model.dtype]


def logprob_bytes_per_device(config: RunConfig) -> int:
    """Bytes of the learner's log-probabilities.

    They are the gathered matrix, float32 sums of its gradient and of that of the rows, and a block
    of logits with its derivative.
    """
    return _logprob_sums(config) + _logit_block(config)


def _logprob_sums(config: RunConfig) -> int:
    model = config.model
    matrix = model.embed_dim * _logit_entries(config)
    sums = 4 * tokens_per_device(config) * model.embed_dim + (0 if model.lora.rank else 4 * matrix)
    return BYTES[model.dtype] * matrix + sums


def has_large_head(model: ModelConfig) -> bool:
    """Whether the output matrix has at least `LARGE_HEAD` numbers."""
    return model.vocab_size * model.embed_dim >= LARGE_HEAD


def _logit_block(config: RunConfig) -> int:
    entries = _logit_entries(config)
    rows = min(tokens_per_device(config), max(LEAST_LOGIT_ROWS, MOST_LOGITS // entries))
    return (4 + BYTES[config.model.dtype]) * rows * entries


def _logit_entries(config: RunConfig) -> int:
    """Entries of the vocabulary that each device holds."""
    vocabulary, tensor = config.model.vocab_size, config.learner.mesh[2]
    split = vocabulary % tensor == 0 and not config.sampling.truncated
    return vocabulary // (tensor if split else 1)


def gradient_bytes_per_device(config: RunConfig) -> int:
    """Most bytes that the gradient of a packed batch takes beside trees of parameters.

    Blocks of logits are gone when layers go to work, so that the larger of the two counts.
    """
    layer = _layer_at_work(config) + expert_bytes_per_device(config)
    layer += attention_bytes_per_device(config)
    kept = _kept_by_layers(config) + _logprob_sums(config)
    return math.ceil(kept + max(layer, _logit_block(config)))


def teacher_bytes_per_device(config: RunConfig, teachers: Sequence[ModelConfig]) -> int:
    """Bytes of the teachers' parameters on each device."""
    _, fsdp, tensor = config.learner.mesh
    whole = sum(weight_bytes(model, config.model.dtype) for model in teachers)
    return math.ceil(whole / (fsdp * tensor))


def scoring_bytes_per_device(config: RunConfig, teacher: ModelConfig) -> int:
    """Most bytes that a teacher's scores of a packed batch take beside its parameters.

    No gradient is computed; a layer is counted as if there were one, which is more.
    """
    learner = dataclasses.replace(config.learner, attention="auto")
    config = dataclasses.replace(config, model=teacher, learner=learner)
    layer = _layer_at_work(config) + expert_bytes_per_device(config)
    layer += attention_bytes_per_device(config)
    matrix = BYTES[teacher.dtype] * teacher.embed_dim * _logit_entries(config)
    return math.ceil(max(layer, matrix + _logit_block(config)))


def server_scoring_bytes(config: RunConfig) -> int:
    """Bytes of a server's device for all teachers of the run, while one of them scores a row."""
    one_row = dataclasses.replace(config.learner, mesh=(1, 1, 1), pack_rows=1, pack_tokens=0)
    config = dataclasses.replace(config, learner=one_row)
    models = [each.model for each in config.distillation.teachers if each.model is not None]
    working = max((scoring_bytes_per_device(config, model) for model in models), default=0)
    return teacher_bytes_per_device(config, models) + working


def tokens_per_device(config: RunConfig) -> int:
    """Tokens of a packed batch on each device; devices that split the width have the same ones."""
    data, fsdp, _ = config.learner.mesh
    return math.ceil(config.pack_rows / (data * fsdp)) * config.row_tokens


def size_text(count: float) -> str:
    """Format bytes for people: `size_text(1536)` is "1.5 KiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"
