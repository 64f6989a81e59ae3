"""Log-probabilities of responses under the distribution that they are sampled from.

That is the whole softmax at the run's temperature or, with top-k or top-p, what these leave
of it: the engine records the latter, and a ratio to it is 1 on policy only if the learner
cuts in the same way.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from rlboost_kernels import kept_entries, matmul, selected_logprobs

from rlboost_jax.config.records import SamplingConfig

_BLOCK_LOGITS: Final = 2**24  # of a block of rows: 64 MiB
_LEAST_ROWS: Final = 128

Logprobs = tuple[Float[Array, " N"], Float[Array, " N"]]


def sampled_logprobs(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    soft_cap: float = 0.0,
    by_row: bool = False,
) -> Logprobs:
    """Log-probability of each token and entropy of its distribution, in nats.

    Where rounding leaves a token just outside of what the learner would keep, it is kept.

    Args:
        soft_cap: `final_soft_cap` of the model; 0: none.
        by_row: whether the logits are the engine's own products, see `models/decoder.py`.
    """
    if not sampling.truncated:
        return whole_logprobs(
            hidden, unembedding, tokens, sampling, soft_cap=soft_cap, by_row=by_row
        )
    N, V = len(tokens), unembedding.shape[1]
    rows = max(_LEAST_ROWS, _BLOCK_LOGITS // V)

    @jax.checkpoint
    def block(part: tuple[Array, Array]) -> Logprobs:
        return _truncated(part[0], unembedding, part[1], sampling, soft_cap, by_row)

    if rows >= N:
        return block((hidden, tokens))
    extra = -N % rows
    parts = (
        jnp.pad(hidden, ((0, extra), (0, 0))).reshape(-1, rows, hidden.shape[1]),
        jnp.pad(tokens, (0, extra)).reshape(-1, rows),
    )
    logprobs, entropies = jax.lax.map(block, parts)
    return logprobs.ravel()[:N], entropies.ravel()[:N]


def whole_logprobs(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    *,
    soft_cap: float = 0.0,
    by_row: bool = False,
) -> Logprobs:
    """The same under the whole softmax, whether sampling cuts it or not."""
    return selected_logprobs(
        hidden,
        unembedding,
        tokens,
        temperature=sampling.temperature,
        soft_cap=soft_cap or None,
        products=None if by_row else "xla",
    )


def _truncated(
    hidden: Float[Array, "N E"],
    unembedding: Float[Array, "E V"],
    tokens: Int[Array, " N"],
    sampling: SamplingConfig,
    soft_cap: float,
    by_row: bool,
) -> Logprobs:
    if by_row:
        logits = matmul(hidden, unembedding, out_dtype=jnp.float32)
    else:
        logits = jnp.matmul(hidden, unembedding, preferred_element_type=jnp.float32)
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
    keep |= jnp.arange(V)[None, :] == tokens[:, None]
    scaled = (logits - fixed.max(axis=-1, keepdims=True)) / sampling.temperature
    weights = jnp.where(keep, jnp.exp(scaled), 0.0)
    total = weights.sum(axis=-1)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    entropies = jnp.log(total) - (weights * scaled).sum(axis=-1) / total
    return chosen - jnp.log(total), entropies
