"""Log-probabilities of responses under the distribution that they are sampled from.

That is the whole softmax at the run's temperature or, with top-k or top-p, what these leave
of it: the engine records the latter, and a ratio to it is 1 on policy only if the learner
cuts in the same way.

On a mesh every device makes logits of its own rows, block by block, and of its own columns where
the `tensor` axis divides the vocabulary: the matrix is gathered over `fsdp` once, in the dtype of
products, and what all devices have of its gradient is summed up once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped
from rlboost_kernels import choice_intervals, choice_masses, kept_entries

from rlboost_jax.models.parameter_sharding import BATCH, unembedding_spec
from rlboost_jax.models.products import float32_product
from rlboost_jax.settings.memory_estimates import LEAST_LOGIT_ROWS, LOGIT_BLOCKS, MOST_LOGITS
from rlboost_jax.settings.sampling_config import SamplingConfig

# For each token: log-probability, entropy of its distribution, and the probabilities that noise
# decides between (`choice_intervals`).
Logprobs = tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, "N ..."]]
# Also the probability of tokens that rounding may take into a cut distribution, or leave out of it.
CutLogprobs = tuple[
    Float[Array, " N"], Float[Array, " N"], Float[Array, "N ..."], Float[Array, " N"]
]
Found = TypeVar("Found", bound=tuple[Any, ...])


class HeadPlan(NamedTuple):
    """How a pass applies the head. Only the default works on arrays over several devices.

    Attributes:
        where: rows that get logits; results of the others are 0. None: all.
        transposed: whether the matrix is a table of embeddings [V, E], read without a copy.
        frozen: whether the matrix and entropies are constants. Without top-k and top-p, logits are
            then made once for both log-probabilities and gradients.
    """

    where: Bool[Array, " N"] | None = None
    transposed: bool = False
    frozen: bool = False


WHOLE_HEAD: Final = HeadPlan()
ROUNDING_SHARE: Final = 1 / 8  # of what is tolerated of a choice: how far a sum or a logit may be


def sampled_logprobs(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"] | Float[Array, "V E"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    plan: HeadPlan = WHOLE_HEAD,
    mesh: Mesh | None = None,
    soft_cap: float = 0.0,
    by_row: bool = False,
    block_logits: int | None = None,
    tolerated_choice: float = 0.0,
) -> CutLogprobs:
    """Log-probability and entropy of each token under the sampling distribution.

    In nats; with the probabilities that noise decides between, and how much of them is unsure where
    top-k or top-p cut the distribution.

    Where rounding leaves a token just outside of what the learner would keep, it is kept. Whether
    the server kept others at the edge of the cut cannot be known.

    Args:
        unembedding: [V, E] where the plan says so.
        mesh: over which rows and the matrix are split; None: all is on one device.
        soft_cap: `final_soft_cap` of the model; 0: none.
        by_row: whether the logits are the engine's own products, see `models/decoder.py`; on a
            mesh of one device.
        block_logits: at most so many are made at once, of `LEAST_LOGIT_ROWS` rows at least; None:
            as many as suit the platform.
        tolerated_choice: probability that rounding may move the edge of a token's interval by.
    """
    if not sampling.truncated:
        logprobs, entropies, masses = whole_logprobs(
            hidden,
            unembedding,
            tokens,
            sampling,
            plan=plan,
            mesh=mesh,
            soft_cap=soft_cap,
            by_row=by_row,
            block_logits=block_logits,
        )
        return logprobs, entropies, masses, jnp.zeros_like(logprobs)
    of_rows = partial(
        _truncated_blocks,
        plan=plan,
        sampling=sampling,
        soft_cap=soft_cap,
        by_row=by_row,
        block_logits=block_logits,
        rounding=tolerated_choice * ROUNDING_SHARE,
    )
    if mesh is None or mesh.size == 1:
        return of_rows(hidden, unembedding, tokens)
    assert plan == WHOLE_HEAD, "for one device"
    spec = unembedding_spec(unembedding.shape, mesh)

    def of_device(hidden: Array, unembedding: Array, tokens: Array) -> CutLogprobs:
        for axis, name in enumerate(spec):
            if name is not None:
                unembedding = jax.lax.all_gather(unembedding, name, axis=axis, tiled=True)
        return of_rows(hidden, unembedding, tokens)

    # What is kept of a row depends on all of its logits: a device makes them all, of fewer rows.
    on_mesh = _on_mesh(of_device, mesh, spec, share_rows=True, results=4)
    return on_mesh(hidden, unembedding, tokens)


def whole_logprobs(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"] | Float[Array, "V E"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    plan: HeadPlan = WHOLE_HEAD,
    mesh: Mesh | None = None,
    soft_cap: float = 0.0,
    by_row: bool = False,
    block_logits: int | None = None,
) -> Logprobs:
    """Log-probabilities under the whole softmax, whether sampling cuts it or not."""
    of_device = partial(
        choice_intervals,
        temperature=sampling.temperature,
        noise=sampling.noise,
        soft_cap=soft_cap or None,
        block_logits=block_logits or _block_logits(),
        products=None if by_row else "xla",
    )
    if mesh is None or mesh.size == 1:
        return of_device(hidden, unembedding, tokens, **plan._asdict())
    assert plan == WHOLE_HEAD, "for one device"
    spec = unembedding_spec(unembedding.shape, mesh)
    gather_axis, axis_name = spec
    of_device = partial(of_device, gather_axis=gather_axis, axis_name=axis_name)
    on_mesh = _on_mesh(of_device, mesh, spec, share_rows=axis_name is None)
    return on_mesh(hidden, unembedding, tokens)


def _on_mesh(
    of_device: Callable[[Array, Array, Array], Found],
    mesh: Mesh,
    spec: PartitionSpec,
    *,
    share_rows: bool,
    results: int = 3,
) -> Callable[[Array, Array, Array], Found]:
    """Lift a function of one device's rows, matrix and tokens to arrays split over a mesh.

    Args:
        spec: of the matrix.
        share_rows: also over `tensor`, if it divides them.
        results: how many arrays come out.
    """

    def on_mesh(hidden: Array, unembedding: Array, tokens: Array) -> Found:
        shared = share_rows and len(tokens) % mesh.size == 0
        rows = PartitionSpec((*BATCH, "tensor") if shared else BATCH)
        run: Callable[..., Found] = jax.shard_map(
            of_device, mesh=mesh, in_specs=(rows, spec, rows), out_specs=(rows,) * results
        )
        return run(hidden, unembedding, tokens)

    return on_mesh


def _block_logits() -> int:
    return LOGIT_BLOCKS.get(jax.default_backend(), MOST_LOGITS)


def _truncated_blocks(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"] | Float[Array, "V E"],
    tokens: Int[Array, " N"],
    *,
    plan: HeadPlan,
    sampling: SamplingConfig,
    soft_cap: float,
    by_row: bool,
    block_logits: int | None,
    rounding: float,
) -> CutLogprobs:
    N, V = len(tokens), unembedding.shape[0 if plan.transposed else 1]
    rows = max(LEAST_LOGIT_ROWS, (block_logits or _block_logits()) // V)

    @jax.checkpoint
    def block(part: tuple[Array, Array]) -> CutLogprobs:
        logits = float32_product(part[0], unembedding, by_row=by_row, transposed=plan.transposed)
        return _truncated(logits, part[1], sampling, soft_cap, rounding)

    def block_if_wanted(part: tuple[Array, Array, Array]) -> CutLogprobs:
        shapes = jax.eval_shape(block, part[:2])
        zeros = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)
        return jax.lax.cond(part[2].any(), block, lambda _: zeros, part[:2])

    if plan.where is not None:
        order = jnp.argsort(~plan.where, stable=True)
        place = jnp.argsort(order)
        parts = _in_blocks((hidden[order], tokens[order], plan.where[order]), rows)
        found = (_rows(each, N)[place] for each in jax.lax.map(block_if_wanted, parts))
        first, second, third, fourth = (
            jnp.where(_alongside(plan.where, each), each, 0.0) for each in found
        )
        return first, second, third, fourth
    if rows >= N:
        return block((hidden, tokens))
    blocks = jax.lax.map(block, _in_blocks((hidden, tokens), rows))
    first, second, third, fourth = (_rows(each, N) for each in blocks)
    return first, second, third, fourth


def _alongside(values: Shaped[Array, " N"], rows: Shaped[Array, "N ..."]) -> Shaped[Array, "N ..."]:
    """Shape a value of each row so that it applies to the whole row."""
    return values.reshape(-1, *(1,) * (rows.ndim - 1))


def _rows(blocks: Shaped[Array, "blocks rows ..."], N: int) -> Shaped[Array, "N ..."]:
    """Invert `_in_blocks` for a result."""
    return blocks.reshape(-1, *blocks.shape[2:])[:N]


def _in_blocks(arrays: tuple[Array, ...], rows: int) -> tuple[Array, ...]:
    """Reshape each [N, …] to [blocks, rows, …], filled up with zeros."""

    def cut(array: Array) -> Array:
        padding = [(0, -len(array) % rows)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, padding).reshape(-1, rows, *array.shape[1:])

    return tuple(map(cut, arrays))


def _truncated(
    logits: Float[Array, "N V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    soft_cap: float,
    rounding: float,
) -> CutLogprobs:
    if soft_cap:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    N, V = logits.shape
    fixed = jax.lax.stop_gradient(logits)
    keep = kept_entries(
        fixed,
        jnp.full(N, sampling.temperature, jnp.float32),
        jnp.full(N, sampling.top_p, jnp.float32),
        jnp.full(N, sampling.top_k, jnp.int32),
    )
    unsure = _unsure(fixed, keep, sampling, rounding)
    ids = jnp.arange(V)[None, :]
    keep |= ids == tokens[:, None]
    scaled = (logits - fixed.max(axis=-1, keepdims=True)) / sampling.temperature
    weights = jnp.where(keep, jnp.exp(scaled), 0.0)
    total = weights.sum(axis=-1)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    entropies = jnp.log(total) - (weights * scaled).sum(axis=-1) / total
    fixed_weights, fixed_total = jax.lax.stop_gradient((weights, total))
    masses = choice_masses(fixed_weights, tokens, noise=sampling.noise)
    masses /= _alongside(fixed_total, masses)
    return chosen - jnp.log(total), entropies, masses, unsure


def _unsure(
    logits: Float[Array, "N V"],
    keep: Bool[Array, "N V"],
    sampling: SamplingConfig,
    rounding: float,
) -> Float[Array, " N"]:
    """Probability of the entries at a cut's edge that another rounding may keep or leave out.

    Args:
        keep: what is kept here.
        rounding: how far a sum of probability or the logarithm of one may be from another's.
    """
    if not rounding:
        return jnp.zeros(len(logits))
    scaled = (logits - logits.max(axis=-1, keepdims=True)) / sampling.temperature
    weights = jnp.exp(scaled)
    kept = jnp.where(keep, weights, 0.0).sum(axis=-1)
    last = jnp.where(keep, scaled, 0.0).min(axis=-1)  # the least likely that is kept
    following = jnp.where(keep, 0.0, weights).max(axis=-1)  # the likeliest that is not
    alike = jnp.abs(scaled - last[:, None]) <= rounding
    exchange = (alike & ~keep).any(axis=-1)
    mass = jnp.where(exchange, jnp.where(alike, weights, 0.0).sum(axis=-1), 0.0)
    if sampling.top_p < 1:
        left = weights
        if sampling.top_k:  # top-p cuts what top-k leaves
            ones = jnp.ones(len(logits))
            some = kept_entries(
                logits, ones * sampling.temperature, ones, (ones * sampling.top_k).astype(jnp.int32)
            )
            left = jnp.where(some, weights, 0.0)
        total = left.sum(axis=-1)
        goes = kept - jnp.exp(last) >= (sampling.top_p - rounding) * total
        comes = (kept <= (sampling.top_p + rounding) * total) & (following > 0)
        mass += jnp.where(goes, jnp.exp(last), 0.0) + jnp.where(comes, following, 0.0)
        mass += jnp.where(goes | comes, rounding * total, 0.0)
    return jnp.minimum(mass / kept, 1.0)
