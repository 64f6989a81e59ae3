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
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels import choice_intervals, kept_entries

from rlboost_jax.models.products import float32_product
from rlboost_jax.models.sharding import BATCH, unembedding_spec
from rlboost_jax.settings.memory import LEAST_LOGIT_ROWS, LOGIT_BLOCKS, MOST_LOGITS
from rlboost_jax.settings.sampling import SamplingConfig

# Of each token: log-probability, entropy of its distribution, and probability of smaller ids.
Logprobs = tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"]]
# And the probability of tokens that rounding may take into a cut distribution, or leave out of it.
CutLogprobs = tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"], Float[Array, " N"]]
Found = TypeVar("Found", bound=tuple[Any, ...])
ROUNDING_SHARE: Final = 1 / 8  # of what is tolerated of a choice: how far a sum or a logit may be


def sampled_logprobs(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    mesh: Mesh | None = None,
    soft_cap: float = 0.0,
    by_row: bool = False,
    block_logits: int | None = None,
    tolerated_choice: float = 0.0,
) -> CutLogprobs:
    """Log-probability of each token and entropy of its distribution, in nats, the probability of
    all smaller ids in it, and how much of it is unsure where top-k or top-p cut it.

    Where rounding leaves a token just outside of what the learner would keep, it is kept. Whether
    others at the edge of the cut were kept by who sampled it, nobody can tell.

    Args:
        mesh: over which rows and the matrix are split; None: all is on one device.
        soft_cap: `final_soft_cap` of the model; 0: none.
        by_row: whether the logits are the engine's own products, see `models/decoder.py`; on a
            mesh of one device.
        block_logits: at most so many are made at once, of `LEAST_LOGIT_ROWS` rows at least; None:
            as many as suit the platform.
        tolerated_choice: probability that rounding may move the edge of a token's interval by.
    """
    if not sampling.truncated:
        logprobs, entropies, below = whole_logprobs(
            hidden,
            unembedding,
            tokens,
            sampling,
            mesh=mesh,
            soft_cap=soft_cap,
            by_row=by_row,
            block_logits=block_logits,
        )
        return logprobs, entropies, below, jnp.zeros_like(below)
    of_rows = partial(
        _truncated_blocks,
        sampling=sampling,
        soft_cap=soft_cap,
        by_row=by_row,
        block_logits=block_logits,
        rounding=tolerated_choice * ROUNDING_SHARE,
    )
    if mesh is None or mesh.size == 1:
        return of_rows(hidden, unembedding, tokens)
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
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    mesh: Mesh | None = None,
    soft_cap: float = 0.0,
    by_row: bool = False,
    block_logits: int | None = None,
) -> Logprobs:
    """The same under the whole softmax, whether sampling cuts it or not."""
    of_device = partial(
        choice_intervals,
        temperature=sampling.temperature,
        soft_cap=soft_cap or None,
        block_logits=block_logits or _block_logits(),
        products=None if by_row else "xla",
    )
    if mesh is None or mesh.size == 1:
        return of_device(hidden, unembedding, tokens)
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
    """Of rows, matrix and tokens that are split over a mesh.

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
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    *,
    sampling: SamplingConfig,
    soft_cap: float,
    by_row: bool,
    block_logits: int | None,
    rounding: float,
) -> CutLogprobs:
    N, V = len(tokens), unembedding.shape[1]
    rows = max(LEAST_LOGIT_ROWS, (block_logits or _block_logits()) // V)

    @jax.checkpoint
    def block(part: tuple[Array, Array]) -> CutLogprobs:
        return _truncated(part[0], unembedding, part[1], sampling, soft_cap, by_row, rounding)

    if rows >= N:
        return block((hidden, tokens))
    extra = -N % rows
    parts = (
        jnp.pad(hidden, ((0, extra), (0, 0))).reshape(-1, rows, hidden.shape[1]),
        jnp.pad(tokens, (0, extra)).reshape(-1, rows),
    )
    first, second, third, fourth = (each.ravel()[:N] for each in jax.lax.map(block, parts))
    return first, second, third, fourth


def _truncated(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    soft_cap: float,
    by_row: bool,
    rounding: float,
) -> CutLogprobs:
    logits = float32_product(hidden, unembedding, by_row=by_row)
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
    below = jnp.where(ids < tokens[:, None], jax.lax.stop_gradient(weights), 0.0).sum(axis=-1)
    return chosen - jnp.log(total), entropies, below / jax.lax.stop_gradient(total), unsure


def _unsure(
    logits: Float[Array, "N V"],
    keep: Bool[Array, "N V"],
    sampling: SamplingConfig,
    rounding: float,
) -> Float[Array, " N"]:
    """Probability of the entries at the edge of a cut that another rounding keeps or leaves out.

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
