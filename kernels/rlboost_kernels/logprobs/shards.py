"""A vocabulary whose columns lie on the devices of a mesh axis: where mine start, and my sums."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.matmul.api import matmul


class Options(NamedTuple):
    """What is fixed while tracing."""

    temperature: float
    soft_cap: float | None
    axis_name: str | None
    rows: int  # of a block of logits
    entries: int  # of a block of logits
    products: str | None  # implementation of `matmul`


class Sums(NamedTuple):
    """What a row needs to know of scaled logits z: all are [N]."""

    maximum: Array
    total: Array  # of exp(z - maximum)
    moment: Array  # of exp(z - maximum) * (z - maximum)
    selected: Array  # z of the row's token; 0 where it lies elsewhere


def vocabulary_size(unembedding: Any, axis_name: str | None) -> int:
    """Entries on all devices."""
    shards = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    return int(unembedding.shape[1]) * shards


def local_tokens(tokens: Array, unembedding: Array, axis_name: str | None) -> Array:
    """Tokens clipped to the vocabulary and counted from the first column held here."""
    tokens = jnp.clip(tokens, 0, vocabulary_size(unembedding, axis_name) - 1)
    if axis_name is None:
        return tokens
    return tokens - jax.lax.axis_index(axis_name) * unembedding.shape[1]


def scaled_logits(hidden: Array, columns: Array, options: Options) -> Array:
    """Float32 logits, capped and divided by the temperature."""
    if options.products == "xla":  # may be partitioned by the compiler
        logits = jnp.matmul(hidden, columns, preferred_element_type=jnp.float32)
    else:
        product = options.products
        logits = matmul(hidden, columns, out_dtype=jnp.float32, implementation=product)
    if options.soft_cap is not None:
        logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
    return logits / options.temperature


def over_shards(sums: Sums, axis_name: str | None) -> Sums:
    """Sums over the vocabulary of all devices."""
    if axis_name is None:
        return sums
    maximum = jax.lax.pmax(jax.lax.stop_gradient(sums.maximum), axis_name)
    lowered = lower(sums, maximum)
    total, moment, selected = jax.lax.psum(lowered[1:], axis_name)
    return Sums(maximum, total, moment, selected)


def lower(sums: Sums, maximum: Array) -> Sums:
    """The same sums relative to a maximum that is not smaller."""
    difference = sums.maximum - maximum
    ratio = jnp.exp(difference)
    moment = ratio * (sums.moment + difference * sums.total)
    return Sums(maximum, ratio * sums.total, moment, sums.selected)


def results(sums: Sums) -> tuple[Array, Array]:
    """Log-probability of the selected entry and entropy, from sums over all entries."""
    log_total = jnp.log(sums.total)
    return sums.selected - sums.maximum - log_total, log_total - sums.moment / sums.total


def vary_alike(*arrays: Array) -> tuple[Array, ...]:
    """Inside `shard_map`, let all arrays vary over the mesh axes that any of them varies over.

    What makes an array vary is differentiated as a sum over these axes, so that the gradient of
    a replicated array comes out whole.
    """
    axes = frozenset[Any]().union(*(varying(array) for array in arrays))
    return tuple(
        jax.lax.pcast(array, tuple(axes - varying(array)), to="varying")
        if axes - varying(array)
        else array
        for array in arrays
    )


def varying(array: Any) -> frozenset[Any]:
    """Mesh axes over which `shard_map` knows an array to vary."""
    return jax.typeof(array).mat.varying
