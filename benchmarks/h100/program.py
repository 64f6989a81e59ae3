"""A program to be compiled, and what it is measured against."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlboost_kernels.packed_attention import packed_triton

from benchmarks.h100.cost import Assumptions, Call
from rlboost_jax.settings.memory_estimates import expert_parameters, num_parameters
from rlboost_jax.settings.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Work:
    """What has to be done, however it is done: nothing is computed twice, nothing is padding."""

    flops: float = 0.0  # over all devices
    num_bytes: float = 0.0  # that each device has to read or write at least once
    tokens: float = 0.0  # trained on, or sampled


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    lower: Callable[[], Any]  # → jax.stages.Lowered
    devices: int
    work: Work
    plan_bytes: float  # on each device, as `--dry_run` and the engine plan it
    held_bytes: float  # what lies on each device meanwhile, arguments and results included
    host_bytes: float = 0.0  # that each device exchanges with its host, in either direction
    assumptions: Assumptions = field(default_factory=Assumptions)
    assumed: str = ""  # the same in words
    context: float = 0.0  # tokens that each row of an engine's step sees
    shared_rounding: bool = False  # whether it has to give a row the bits that others give it


def product_parameters(model: ModelConfig) -> float:
    """Parameters that each token is multiplied with: no look-ups, no experts that it skips."""
    looked_up = 0 if model.tie_embeddings else model.vocab_size * model.embed_dim
    skipped = 0.0
    if model.num_experts:
        skipped = expert_parameters(model) * (1 - model.experts_per_token / model.num_experts)
    return num_parameters(model) - looked_up - skipped


def attention_flops(model: ModelConfig, context: float) -> float:
    """Forwards, of a token that sees so many: scores, and the sum of values."""
    return 4 * model.num_layers * model.num_query_heads * model.head_dim * context


def packed_attention_calls(model: ModelConfig, tokens: int, heads: float) -> tuple[Call, ...]:
    """Fused attention of rows that are one sequence each: products of tokens that see each other,
    the mean of all layers where some have windows. What blocks on the diagonal multiply in vain is
    left out.

    Args:
        tokens: of a row.
        heads: of queries that a device has, in all of its rows together.
    """
    seen = [min(window or tokens, tokens) for window in model.layer_windows]
    pairs = sum(s * (s + 1) / 2 + (tokens - s) * s for s in seen) / len(seen)
    product = 2 * pairs * heads * model.head_dim
    calls = [Call(name, number * product) for name, number in packed_triton.PRODUCTS.items()]
    return (*calls, Call("fmhaSoftmaxBackward", 5 * product), Call("fmhaSoftmax", 2 * product))
