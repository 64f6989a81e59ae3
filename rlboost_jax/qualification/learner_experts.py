"""A layer of experts as a learner runs it on one device: forwards and backwards.

The reference is computed on the host, in float64 or, of 16-bit types, in float32. So that it takes
seconds, there are at most `_TOKENS` tokens and `_EXPERTS` experts, each as wide as the model's. XLA
has a product of its own, which on a GPU is one of all rows with all experts: it is not tried.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray
from rlboost_kernels.grouped.grouped_api import Implementation, choose_grouped

from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.decoder import activation_of
from rlboost_jax.models.grouped_experts import How, Matrices, added_by_experts
from rlboost_jax.qualification.problem import (
    TOLERANCE,
    Candidate,
    Case,
    Inputs,
    TrialProblem,
    repeated,
)
from rlboost_jax.settings.memory_estimates import tokens_per_device
from rlboost_jax.settings.run_config import RunConfig

PLAIN: Final[Implementation] = "blocks"
_TOKENS: Final = 2048
_EXPERTS: Final = 16
# Only the order of the bounds counts: blocks copy matrices and compute what is in no group.
_BOUNDS: Final[Mapping[Implementation, float]] = {"mosaic_gpu": 1.0, "blocks": 2.0}


class ExpertsShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of one device's tokens and experts in one layer."""

    tokens: int
    num_experts: int
    experts_per_token: int
    embed_dim: int
    expert_dim: int
    dtype: str
    activation: str
    interpret: bool = False  # kernels step by step on CPU, for tests


def shape_of(run: RunConfig) -> ExpertsShape | None:
    """Sizes of a learner's layer of experts; None in a model without."""
    model = base_model(run.model)
    if not model.num_experts:
        return None
    tensor = run.learner.mesh[2]
    held = model.num_experts // (tensor if model.num_experts % tensor == 0 else 1)
    experts = min(held, _EXPERTS)
    return ExpertsShape(
        tokens=min(tokens_per_device(run), _TOKENS),
        num_experts=experts,
        experts_per_token=min(model.experts_per_token, experts),
        embed_dim=model.embed_dim,
        expert_dim=model.expert_dim,
        dtype=model.dtype,
        activation=model.activation,
    )


def problem(values: Mapping[str, Any]) -> TrialProblem:
    """Make the problem from an `ExpertsShape` as JSON has it."""
    shape = msgspec.convert(values, ExpertsShape)
    case = Case(
        name=f"{shape.tokens} tokens, {shape.num_experts} experts",
        weight=0.0 if shape.interpret else 1.0,  # step by step: no time of interest
        make=partial(_inputs, shape),
        reference=partial(on_host, shape=shape),
        variants=repeated,
    )
    return TrialProblem(
        candidates=tuple(
            Candidate(
                name=name,
                bound=bound,
                run=partial(_run, shape, name),
                why_not=partial(_why_not, shape, name),
            )
            for name, bound in _BOUNDS.items()
        ),
        plain=PLAIN,
        cases=(case,),
        tolerance=TOLERANCE[shape.dtype],
    )


def _why_not(shape: ExpertsShape, name: Implementation, inputs: Inputs) -> str:
    axes = shape.embed_dim, shape.expert_dim
    try:
        choose_grouped(name, shape.dtype, *axes, interpret=shape.interpret)
    except NotImplementedError as error:
        return str(error)
    return ""


def _run(shape: ExpertsShape, name: Implementation, *inputs: Array) -> tuple[Array, ...]:
    """Return the experts' output, and the gradients of tokens, weights and matrices, row by row."""
    x, chosen, weights, gate, up, down, upstream = inputs
    how = How(None, activation_of(shape.activation), name, shape.interpret)

    def added(x: Array, weights: Array, *matrices: Array) -> Array:
        return added_by_experts(how, x, chosen, weights, Matrices(*matrices))

    out, pull_back = jax.vjp(added, x, weights, gate, up, down)
    to_x, to_weights, *to_matrices = pull_back(upstream)
    return out, to_x, to_weights, *(m.reshape(-1, m.shape[-1]) for m in to_matrices)


def _inputs(shape: ExpertsShape) -> Inputs:
    """Draw tokens, their experts and weights, matrices, and output gradients.

    The first experts are chosen most, and the last one, where there are more than a token has, by
    nobody.
    """
    rng, X, A = np.random.default_rng(0), shape.num_experts, shape.experts_per_token
    liked = np.linspace(2.0, 0.0, X)
    if X > A:
        liked[-1] = -np.inf
    scores = liked + rng.gumbel(size=(shape.tokens, X))
    chosen = np.argsort(-scores, axis=1)[:, :A].astype(np.int32)
    weights = rng.uniform(0.5, 1.0, (shape.tokens, A)).astype(np.float32)

    def normal(seed: int, sizes: tuple[int, ...], scale: float, dtype: str) -> Array:
        return (scale * jax.random.normal(jax.random.key(seed), sizes, jnp.float32)).astype(dtype)

    draw = jax.jit(normal, static_argnums=(0, 1, 2, 3))
    E, F = shape.embed_dim, shape.expert_dim
    tokens, wide, narrow = (shape.tokens, E), (X, E, F), (X, F, E)
    return (
        draw(0, tokens, 1.0, shape.dtype),
        jnp.asarray(chosen),
        jnp.asarray(weights),
        draw(1, wide, E**-0.5, shape.dtype),
        draw(2, wide, E**-0.5, shape.dtype),
        draw(3, narrow, F**-0.5, shape.dtype),
        draw(4, tokens, 1.0, "float32"),
    )


def on_host(inputs: Inputs, *, shape: ExpertsShape) -> tuple[NDArray[Any], ...]:
    """Compute the same results on the host, expert by expert."""
    wide = np.float64 if shape.dtype == "float32" else np.float32
    chosen = np.asarray(inputs[1])
    x, _, weights, *matrices, upstream = (np.asarray(a).astype(wide) for a in inputs)
    # What comes back is rounded to the type of the tokens before it is multiplied.
    upstream = np.asarray(jnp.asarray(inputs[6]).astype(shape.dtype)).astype(wide)
    out, to_x, to_weights = np.zeros_like(x), np.zeros_like(x), np.zeros_like(weights)
    to_matrices = [np.zeros_like(m) for m in matrices]
    for expert, (gate, up, down) in enumerate(zip(*matrices, strict=True)):
        token, place = np.nonzero(chosen == expert)
        rows, back, weight = x[token], upstream[token], weights[token, place][:, None]
        left, right = rows @ gate, rows @ up
        value, slope = _activated(left, shape.activation)
        hidden, to_hidden = value * right, back @ down.T
        np.add.at(out, token, weight * (hidden @ down))
        to_weights[token, place] = (to_hidden * hidden).sum(axis=1)
        to_left, to_right = weight * to_hidden * right * slope, weight * to_hidden * value
        np.add.at(to_x, token, to_left @ gate.T + to_right @ up.T)
        for total, found in zip(
            to_matrices,
            (rows.T @ to_left, rows.T @ to_right, (weight * hidden).T @ back),
            strict=True,
        ):
            total[expert] = found
    return out, to_x, to_weights, *(m.reshape(-1, m.shape[-1]) for m in to_matrices)


def _activated(
    x: Float[np.ndarray, "C F"], name: str
) -> tuple[Float[np.ndarray, "C F"], Float[np.ndarray, "C F"]]:
    """Return the activation and its derivative."""
    if name == "silu":
        share = 1 / (1 + np.exp(-x))
        return x * share, share * (1 + x * (1 - share))
    root = x.dtype.type(np.sqrt(2 / np.pi))
    bend = np.tanh(root * (x + 0.044715 * x**3))
    inner = root * (1 + 3 * 0.044715 * x**2)
    return x * (1 + bend) / 2, (1 + bend) / 2 + x * (1 - bend**2) * inner / 2
