"""Time of sampling a token per row, against the ordinary ways to do it in JAX."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlboost_kernels.sampling.noise import NoiseKind
from rlboost_kernels.sampling.sampling_api import sample_tokens

SHAPES = ((64, 112), (64, 32768), (64, 151936))  # T, V

_COLUMNS = "{:28} {:>11} {:>11} {:>13} {:>11} {:>11} {:>13} {:>11}"


def sampling_rows(
    median_seconds: Callable[[Mapping[str, Callable[[], object]], int], dict[str, float]],
    rounds: int,
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> list[str]:
    """Make a heading, and a line for each shape: milliseconds of each way.

    "tree" is untruncated with the noise of a tree, "categorical" `jax.random.categorical`, "sort" a
    top-p cut by sorting the vocabulary; they stand beside what they compare with.

    Args:
        median_seconds: of calls that take turns, as in `rlboost_kernels.bench`.
    """
    lines: list[str] = []
    for T, V in shapes:
        logits = jnp.asarray(np.random.default_rng(0).normal(0, 3, (T, V)), jnp.float32)
        calls: dict[str, Callable[[], object]] = {
            "untruncated": _call(logits, truncated=False),
            "tree": _call(logits, truncated=False, noise="tree"),
            "categorical": partial(_categorical, logits),
            "top_k 50": _call(logits, top_k=50),
            "top_p 0.9": _call(logits, top_p=0.9),
            "sort, top_p 0.9": partial(_by_sorting, logits),
            "both": _call(logits, top_k=50, top_p=0.9),
        }
        seconds = median_seconds(calls, rounds)
        if not lines:
            lines.append(_COLUMNS.format("sampling, T V", *(name.split(",")[0] for name in calls)))
        times = (f"{seconds[name] * 1e3:.2f} ms" for name in calls)
        lines.append(_COLUMNS.format(f"{T} {V}", *times))
    return lines


def _call(
    logits: Array,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    truncated: bool = True,
    noise: NoiseKind = "inverse_cdf",
) -> Callable[[], object]:
    T = logits.shape[0]
    rows = jnp.arange(T, dtype=jnp.uint32)
    return partial(
        sample_tokens,
        logits,
        jnp.zeros_like(rows),
        jnp.zeros_like(rows),
        rows,
        jnp.zeros(T, jnp.int32),
        jnp.ones(T),
        jnp.full(T, top_p, jnp.float32),
        jnp.full(T, top_k, jnp.int32),
        noise=noise,
        truncated=truncated,
    )


@jax.jit
def _categorical(logits: Array) -> Array:
    return jax.random.categorical(jax.random.key(0), logits)


@jax.jit
def _by_sorting(logits: Array) -> Array:
    order = jnp.argsort(-logits, axis=-1)
    ordered = jnp.take_along_axis(logits, order, axis=-1)
    p = jax.nn.softmax(ordered, axis=-1)
    kept = jnp.where(jnp.cumsum(p, axis=-1) - p < 0.9, ordered, -jnp.inf)
    places = jax.random.categorical(jax.random.key(0), kept)
    return jnp.take_along_axis(order, places[:, None], axis=-1)
