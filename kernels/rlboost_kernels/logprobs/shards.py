"""A matrix that lies on the devices of a mesh, rows of logits that do, and sums over devices.

A vocabulary may be split over one mesh axis: each device then makes the logits of its own columns.
The width may be split over another one: the matrix is gathered there, once, as it comes. Rows are
shared out over any axes. Gradients are summed over devices in float32, and rounded after that.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.matmul.api import matmul
from rlboost_kernels.precision import product_precision


class Options(NamedTuple):
    """What is fixed while tracing."""

    temperature: float
    soft_cap: float | None
    axis_name: str | None  # over which the vocabulary is split
    gather_axis: str | None  # over which the width is split
    rows: int  # of a block of logits
    entries: int  # of a block of logits
    products: str | None  # implementation of `matmul`


class Sums(NamedTuple):
    """What a row needs to know of scaled logits z: all are [N]."""

    maximum: Array
    total: Array  # of exp(z - maximum)
    moment: Array  # of exp(z - maximum) * (z - maximum)
    selected: Array  # z of the row's token; 0 where it lies elsewhere
    below: Array  # of exp(z - maximum), over ids smaller than the row's token


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
        logits = float32_product(hidden, columns)
    else:
        product = options.products
        logits = matmul(hidden, columns, out_dtype=jnp.float32, implementation=product)
    if options.soft_cap is not None:
        logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
    return logits / options.temperature


def float32_product(left: Array, right: Array) -> Array:
    """Of factors of one type, neither rounded before nor after."""
    precision = product_precision(left.dtype)
    return jnp.matmul(left, right, precision=precision, preferred_element_type=jnp.float32)


def over_shards(sums: Sums, axis_name: str | None) -> Sums:
    """Sums over the vocabulary of all devices."""
    if axis_name is None:
        return sums
    maximum = jax.lax.pmax(jax.lax.stop_gradient(sums.maximum), axis_name)
    lowered = lower(sums, maximum)
    return Sums(maximum, *jax.lax.psum(lowered[1:], axis_name))


def lower(sums: Sums, maximum: Array) -> Sums:
    """The same sums relative to a maximum that is not smaller."""
    difference = sums.maximum - maximum
    ratio = jnp.exp(difference)
    moment = ratio * (sums.moment + difference * sums.total)
    return Sums(maximum, ratio * sums.total, moment, sums.selected, ratio * sums.below)


def results(sums: Sums) -> tuple[Array, Array, Array]:
    """Log-probability of the selected entry, entropy, and the probability of all smaller ids, from
    sums over all entries."""
    log_total = jnp.log(sums.total)
    return (
        sums.selected - sums.maximum - log_total,
        log_total - sums.moment / sums.total,
        jax.lax.stop_gradient(sums.below / sums.total),
    )


def gathered(unembedding: Array, gather_axis: str | None) -> Array:
    """All rows of the matrix, of the columns that are held here."""
    if gather_axis is None:
        return unembedding
    return jax.lax.all_gather(unembedding, gather_axis, axis=0, tiled=True)


def summed_like(gradient: Array, argument: Array, scatter_axis: str | None = None) -> Array:
    """The gradient to an argument from what every device has of it, in the argument's dtype.

    Args:
        gradient: float32; of the whole argument where that was gathered.
        scatter_axis: over which it was gathered. Each device gets its own rows of the sum.
    """
    if scatter_axis is not None:
        gradient = jax.lax.psum_scatter(gradient, scatter_axis, scatter_dimension=0, tiled=True)
    axes = tuple(varying(gradient) - varying(argument))
    gradient = jax.lax.psum(gradient, axes) if axes else gradient
    return gradient.astype(argument.dtype)


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
