"""Attention over packed rows as a learner runs it: one row, forwards and backwards.

There are two cases for each kind of layer. A row that is cut to `_HOST_TOKENS` is compared with the
host, in float64 or, of 16-bit types, in float32. A row of the run's own length is compared with the
chunked form in float32 on the device: on the host it would take up to a minute. That one is timed.

A row of results is a block of neighbouring tokens with all of their heads: the gradient of a token
that sees itself alone is nothing, and what is left of it after rounding is compared with its
neighbours'.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float
from numpy.typing import NDArray

from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.attention import MOST_PAGED_TOKENS
from rlboost_jax.models.chunked_attention import Form, attend_chunked
from rlboost_jax.models.packed_attention import (
    EQUAL_BITS,
    KERNELS,
    Kernel,
    fused_attention,
    why_not,
)
from rlboost_jax.models.parameter_sharding import AXES
from rlboost_jax.qualification.problem import (
    TOLERANCE,
    Candidate,
    Case,
    Inputs,
    TrialProblem,
    repeated,
)
from rlboost_jax.settings.memory_estimates import MOST_DENSE_TOKENS
from rlboost_jax.settings.run_config import RunConfig

PLAIN: Final = "chunked"
_HOST_TOKENS: Final = 1024  # of a row that is computed on the host as well
_BLOCK: Final = 16  # tokens whose results count as one row
# Only the order of the bounds counts: least arithmetic first, and trips of loops last.
_BOUNDS: Final[Mapping[Kernel, float]] = {"cudnn": 7.0, "triton": 9.0}  # products of a pair
_BOUND_OF_PLAIN: Final = 100.0


class LearnerAttentionShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of one device's share of one row."""

    row_tokens: int
    longest: int  # tokens of the longest sequence
    query_heads: int
    key_heads: int
    head_dim: int
    dtype: str
    scale: float
    soft_cap: float  # 0: none
    windows: tuple[int, ...]  # of the layers, each once; 0: none
    refused: dict[str, str]  # kernels that cannot run the model or must not, and why
    interpret: bool = False  # kernels step by step on CPU, for tests


def shape_of(run: RunConfig) -> LearnerAttentionShape | None:
    """Sizes of a learner's attention; None where "auto" needs no kernel.

    That is for short rows, few tokens on one device, and float32, which no kernel is fast for.
    """
    model = base_model(run.model)
    tokens, mesh = run.row_tokens, AbstractMesh(run.learner.mesh, AXES)
    paged = mesh.size == 1 and run.pack_rows * tokens <= MOST_PAGED_TOKENS
    if tokens <= MOST_DENSE_TOKENS or paged or model.dtype == "float32":
        return None
    tensor = mesh.shape["tensor"]
    refused = {kernel: why_not(kernel, model, mesh, "gpu") for kernel in KERNELS}
    if run.deterministic:
        order = "its gradients are added up in any order"
        refused |= {kernel: order for kernel in KERNELS if kernel not in EQUAL_BITS}
    return LearnerAttentionShape(
        row_tokens=tokens,
        longest=min(tokens, run.slot_tokens),
        query_heads=max(1, model.num_query_heads // tensor),
        key_heads=max(1, model.num_key_heads // tensor),
        head_dim=model.head_dim,
        dtype=model.dtype,
        scale=model.attention_scale,
        soft_cap=model.attention_soft_cap,
        windows=tuple(sorted(set(model.layer_windows))),
        refused={kernel: reason for kernel, reason in refused.items() if reason},
    )


def problem(values: Mapping[str, Any]) -> TrialProblem:
    """Make the problem from a `LearnerAttentionShape` as JSON has it."""
    shape = msgspec.convert(values, LearnerAttentionShape)
    return TrialProblem(
        candidates=tuple(_candidates(shape)),
        plain=PLAIN,
        cases=tuple(_cases(shape)),
        tolerance=TOLERANCE[shape.dtype],
    )


def _candidates(shape: LearnerAttentionShape) -> Iterator[Candidate]:
    for kernel in KERNELS:
        yield Candidate(
            name=kernel,
            bound=_BOUNDS[kernel],
            run=partial(_of_kernel, shape, kernel),
            why_not=partial(_refused, shape, kernel),
        )
    yield Candidate(name=PLAIN, bound=_BOUND_OF_PLAIN, run=partial(_of_chunked, shape))


def _refused(shape: LearnerAttentionShape, kernel: Kernel, inputs: Inputs) -> str:
    platform = jax.default_backend()
    here = platform == "gpu" or (shape.interpret and kernel == "triton")
    return shape.refused.get(kernel, "" if here else f"it is for GPUs and this is {platform}")


def _of_kernel(
    shape: LearnerAttentionShape, kernel: Kernel, *inputs: Array, window: int
) -> tuple[Array, ...]:
    segments, *heads = inputs
    attend = fused_attention(kernel, window, segments, None, interpret=shape.interpret)
    form = _form(shape, window)
    return _blocks(_with_gradients(lambda q, k, v: attend(form, q, k, v, None), *heads))


def _of_chunked(shape: LearnerAttentionShape, *inputs: Array, window: int) -> tuple[Array, ...]:
    segments, *heads = inputs
    form = _form(shape, window)
    return _blocks(
        _with_gradients(lambda q, k, v: attend_chunked(form, q, k, v, segments, None), *heads)
    )


def _form(shape: LearnerAttentionShape, window: int) -> Form:
    return Form(shape.scale, shape.soft_cap or None, window)


def _with_gradients(attend: Any, *heads: Array) -> tuple[Array, ...]:
    """Return the result and the gradients of queries, keys and values."""
    *qkv, upstream = heads
    out, pull_back = jax.vjp(attend, *qkv)
    return out, *pull_back(upstream)


def _blocks(results: tuple[Array, ...]) -> tuple[Array, ...]:
    def of_tokens(x: Float[Array, "N _ D"]) -> Float[Array, "L _"]:
        x = jnp.pad(x, ((0, -len(x) % _BLOCK), (0, 0), (0, 0)))
        return x.reshape(len(x) // _BLOCK, -1)

    return tuple(map(of_tokens, results))


def _cases(shape: LearnerAttentionShape) -> Iterator[Case]:
    cut = min(shape.row_tokens, _HOST_TOKENS)
    whole = cut == shape.row_tokens
    for window in shape.windows:
        name = f" with a window of {window}" if window else ""
        weight = 1 / len(shape.windows)
        yield Case(
            name=(f"a row of {cut} tokens" if whole else f"a row cut to {cut} tokens") + name,
            weight=weight if whole else 0.0,
            make=partial(_inputs, shape, cut),
            reference=partial(on_host, shape=shape, window=window),
            options={"window": window},
            variants=repeated,
        )
        if not whole:
            yield Case(
                name=f"a row of {shape.row_tokens} tokens" + name,
                weight=weight,
                make=partial(_inputs, shape, shape.row_tokens),
                reference=partial(_on_device, shape=shape, window=window),
                options={"window": window},
                variants=repeated,
            )


def _inputs(shape: LearnerAttentionShape, tokens: int) -> Inputs:
    """Draw normal queries, keys, values and output gradients, after the row's segments.

    The longest sequence, half of what is left, half of that and so on, as the row has room.
    """
    lengths, left, longest = list[int](), tokens, max(1, min(shape.longest, tokens // 2))
    while left:
        lengths.append(max(1, min(longest, left - left // 2)))
        left -= lengths[-1]
    segments = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None]

    def normal(seed: int, heads: int) -> Array:
        sizes = (tokens, heads, shape.head_dim)
        return jax.random.normal(jax.random.key(seed), sizes, jnp.float32).astype(shape.dtype)

    draw = jax.jit(normal, static_argnums=(0, 1))
    H, K = shape.query_heads, shape.key_heads
    return (jnp.asarray(segments), draw(0, H), draw(1, K), draw(2, K), draw(3, H))


def _on_device(
    inputs: Inputs, *, shape: LearnerAttentionShape, window: int
) -> tuple[NDArray[Any], ...]:
    segments, *heads = inputs
    wide = (x.astype(jnp.float32) for x in heads)
    results = jax.jit(partial(_of_chunked, shape, window=window))(segments, *wide)
    return tuple(np.asarray(x) for x in results)


def on_host(
    inputs: Inputs, *, shape: LearnerAttentionShape, window: int
) -> tuple[NDArray[Any], ...]:
    """Compute results and gradients by sequence and query head, arranged as by `_blocks`."""
    wide = np.float64 if shape.dtype == "float32" else np.float32
    segments = np.asarray(inputs[0])[0]
    q, k, v, up = (np.asarray(x).astype(wide) for x in inputs[1:])
    out, dq, dk, dv = (np.zeros(x.shape, wide) for x in (q, q, k, v))
    group = shape.query_heads // shape.key_heads
    for one in np.unique(segments):
        at = np.flatnonzero(segments == one)
        before = at[:, None] - at[None, :]
        seen = (before >= 0) & ((before < window) | (not window))
        for head in range(shape.query_heads):
            of = head // group
            scores, slope = q[at, head] @ k[at, of].T * wide(shape.scale), wide(1)
            if shape.soft_cap:
                scores = wide(shape.soft_cap) * np.tanh(scores / wide(shape.soft_cap))
                slope = 1 - np.square(scores / wide(shape.soft_cap))
            scores = np.where(seen, scores, -np.inf)
            parts = np.exp(scores - scores.max(axis=1, keepdims=True))
            parts /= parts.sum(axis=1, keepdims=True)
            out[at, head] = parts @ v[at, of]
            mean = (up[at, head] * out[at, head]).sum(axis=1, keepdims=True)
            slopes = parts * (up[at, head] @ v[at, of].T - mean) * slope * wide(shape.scale)
            dq[at, head] = slopes @ k[at, of]
            dk[at, of] += slopes.T @ q[at, head]
            dv[at, of] += parts.T @ up[at, head]
    return tuple(np.asarray(x) for x in _blocks_on_host(out, dq, dk, dv))


def _blocks_on_host(*results: Float[np.ndarray, "N _ D"]) -> Iterator[NDArray[Any]]:
    for x in results:
        padded = np.pad(x, ((0, -len(x) % _BLOCK), (0, 0), (0, 0)))
        yield padded.reshape(len(padded) // _BLOCK, -1)
