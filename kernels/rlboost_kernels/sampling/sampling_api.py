"""The public functions: validate, choose an implementation, run it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.implementations import choose_plain
from rlboost_kernels.sampling import sampling_reference, sampling_xla
from rlboost_kernels.sampling.noise import NoiseKind, check_kind, noise_keys, token_noise
from rlboost_kernels.sampling.sum_tree import FANOUT, num_levels

_PROGRAMS = {"reference": sampling_reference.draw, "xla": sampling_xla.draw}
_FLOATS = ("float32", "bfloat16", "float16")


def sample_tokens(
    logits: Array,  # [T, V]
    seed: Array,  # u32[T]
    step: Array,  # u32[T]
    sample: Array,  # u32[T]
    position: Array,  # i32[T]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    noise: NoiseKind = "inverse_cdf",
    truncated: bool = True,
    implementation: str | None = None,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """Draw a token per row with the noise that belongs to (seed, step, sample, position).

    Equal logits and numbers give equal tokens and log-probabilities in any row, company, program
    and order. A loop over positions can make `noise_keys(seed, step, sample)` once, and call
    `tokens_from_noise(logits, token_noise(keys, position, noise, vocabulary=V), …)`, which is the
    same.

    Args:
        position: of the token in its response; the other three name the response.
        noise: how it chooses, see `rlboost_kernels.sampling.noise`.
        others: see `tokens_from_noise`.

    Raises:
        ValueError: shapes or types do not fit together.
        NotImplementedError: the named implementation cannot run here.
    """
    for name, column in {"seed": seed, "step": step, "sample": sample}.items():
        _check_column(logits, name, column, "uint32")
    _check_column(logits, "position", position, "int32")
    _check_logits(logits)
    check_kind(noise)
    return tokens_from_noise(
        logits,
        _noise(seed, step, sample, position, noise, logits.shape[1]),
        temperature,
        top_p,
        top_k,
        truncated=truncated,
        implementation=implementation,
    )


def tokens_from_noise(
    logits: Array,  # [T, V]
    noise: Array,  # f32[T], or f32[T, levels, 16]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    truncated: bool = True,
    implementation: str | None = None,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """A token per row, and its log-probability in nats under the distribution sampled from.

    That distribution is softmax(logits / temperature), cut to the `top_k` likeliest entries
    and then to the fewest likeliest ones that hold `top_p` of the rest, renormalised. Equal
    logits are ranked by id. Temperature 0 is all mass on the first largest logit: log-prob 0.

    Never returns an entry of probability 0 or an id outside the vocabulary, whatever the noise.
    A row of logits that are no numbers has a log-probability that is none either; a single one
    among others shows at a temperature above 0. The bits of a row do not depend on the other rows.

    Args:
        logits: float32, or narrower and computed in float32. A row may hold -inf, but not only.
        noise: inside (0, 1), to invert the distribution over ids (`uniforms`); or above 0, for the
            choices of a tree (`exponentials`). Rows of temperature 0 use none.
        top_p: 1 or more keeps all.
        top_k: 0 or less keeps all.
        truncated: False leaves the search out of the program; `top_k` and `top_p` are ignored.
        implementation: "reference" or "xla"; None or "auto" takes the best.

    Raises:
        ValueError: shapes or types do not fit together.
        NotImplementedError: the named implementation cannot run here.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, arXiv:1904.09751
    (top-p).
    """
    _check_logits(logits)
    if noise.ndim > 1:
        shape = (len(logits), num_levels(logits.shape[1]), FANOUT)
        if noise.shape != shape or str(noise.dtype) != "float32":
            raise ValueError(
                f"noise is {noise.dtype}{list(noise.shape)}; it must be float32 "
                f"[{shape[0]}], or {list(shape)} for the levels of this vocabulary's tree"
            )
    else:
        _check_column(logits, "noise", noise, "float32")
    for name, column in {"temperature": temperature, "top_p": top_p}.items():
        _check_column(logits, name, column, "float32")
    _check_column(logits, "top_k", top_k, "int32")
    name = choose_plain(implementation)
    return _draw(logits, noise, temperature, top_p, top_k, truncated=truncated, name=name)


def kept_entries(
    logits: Array,  # f32[T, V]
    temperature: Array,  # f32[T], above 0
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
) -> Array:  # bool[T, V]
    """Return the entries that top-k and top-p leave to `tokens_from_noise`; at least the likeliest.

    For a trainer, which needs the distribution that a token was sampled from. No derivative
    goes through it: pass `jax.lax.stop_gradient(logits)`.

    Raises:
        ValueError: shapes or types do not fit together.
    """
    if logits.ndim != 2 or logits.dtype != jnp.float32:
        raise ValueError(f"logits is {logits.dtype}{logits.shape}; it must be float32 [rows, V]")
    for name, column in {"temperature": temperature, "top_p": top_p}.items():
        _check_column(logits, name, column, "float32")
    _check_column(logits, "top_k", top_k, "int32")
    return sampling_xla.kept(logits, temperature, top_p, top_k)


# Both are compiled on their own when called eagerly.
@partial(jax.jit, static_argnums=(4, 5))
def _noise(
    seed: Array, step: Array, sample: Array, position: Array, kind: NoiseKind, vocabulary: int
) -> Array:
    keys = noise_keys(seed, step, sample)
    return token_noise(keys, position, kind, vocabulary=vocabulary)


@partial(jax.jit, static_argnames=("truncated", "name"))
def _draw(
    logits: Array,
    noise: Array,
    temperature: Array,
    top_p: Array,
    top_k: Array,
    *,
    truncated: bool,
    name: str,
) -> tuple[Array, Array]:
    logits = logits.astype(jnp.float32)
    return _PROGRAMS[name](logits, noise, temperature, top_p, top_k, truncated=truncated)


def _check_logits(logits: Any) -> None:
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits has shape {logits.shape}; it must be [rows, vocabulary]")
    if str(logits.dtype) not in _FLOATS:
        raise ValueError(f"logits has type {logits.dtype}; it must be one of {', '.join(_FLOATS)}")


def _check_column(logits: Array, name: str, column: Any, dtype: str) -> None:
    rows = logits.shape[:1]
    if column.shape != rows:
        raise ValueError(f"{name} has shape {column.shape}; it must be {rows}, one per row")
    if str(column.dtype) != dtype:
        raise ValueError(f"{name} has type {column.dtype}; it must be {dtype}")
