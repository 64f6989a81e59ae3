"""A matrix that lies on the devices of a mesh, rows of logits that do, and sums over devices.

A vocabulary may be split over one mesh axis: each device then makes the logits of its own columns.
The width may be split over another one: the matrix is gathered there, once, as it comes. Rows are
shared out over any axes. Gradients are summed over devices in float32, and rounded after that.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.matmul.matmul_api import matmul
from rlboost_kernels.precision import product_precision
from rlboost_kernels.sampling.choice_masses import choice_masses
from rlboost_kernels.sampling.noise import NoiseKind
from rlboost_kernels.sampling.sum_tree import FANOUT


class Options(NamedTuple):
    """Constants of a trace."""

    temperature: float
    soft_cap: float | None
    axis_name: str | None  # over which the vocabulary is split
    gather_axis: str | None  # over which the width is split
    rows: int  # of a block of logits
    entries: int  # of a block of logits
    products: str | None  # implementation of `matmul`
    transposed: bool = False  # the matrix is [V, E]
    frozen: bool = False  # the matrix and entropies are constants
    noise: NoiseKind = "inverse_cdf"  # for which masses are wanted


class Sums(NamedTuple):
    """Sums over a row's scaled logits z: all are [N], or `masses` [N, levels, 16]."""

    maximum: Array
    total: Array  # of exp(z - maximum)
    moment: Array  # of exp(z - maximum) * (z - maximum)
    selected: Array  # z of the row's token; 0 where it lies elsewhere
    # Of exp(z - maximum): over ids smaller than the row's token, or over the children of the nodes
    # of a tree that lead to it.
    masses: Array


def vocabulary_size(unembedding: Any, axis_name: str | None, *, transposed: bool = False) -> int:
    """Number of entries on all devices."""
    shards = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    return int(unembedding.shape[0 if transposed else 1]) * shards


def masses_of(
    weights: Array,  # f32[N, entries]
    tokens: Array,  # i32[N], counted from the first of these entries
    first: Array | int,  # of these entries, among those held here
    entries: int,  # that are held here
    options: Options,
) -> Array:  # f32[N] or f32[N, levels, 16]
    """Sum the weights that noise decides between, see `Sums.masses`."""
    shards = 1 if options.axis_name is None else jax.lax.axis_size(options.axis_name)
    if shards > 1:
        first += jax.lax.axis_index(options.axis_name) * entries
    block = weights.shape[1]
    return choice_masses(
        weights,
        tokens + first,
        noise=options.noise,
        vocabulary=entries * shards,
        first=first,
        aligned=block == entries * shards or block % FANOUT == entries % FANOUT == 0,
    )


def local_tokens(tokens: Array, unembedding: Array, options: Options) -> Array:
    """Clip tokens to the vocabulary and count them from the first column held here."""
    axis_name = options.axis_name
    entries = vocabulary_size(unembedding, axis_name, transposed=options.transposed)
    tokens = jnp.clip(tokens, 0, entries - 1)
    if axis_name is None:
        return tokens
    return tokens - jax.lax.axis_index(axis_name) * unembedding.shape[1]


def scaled_logits(hidden: Array, columns: Array, options: Options) -> Array:
    """Compute float32 logits, capped and divided by the temperature."""
    if options.products == "xla":  # may be partitioned by the compiler
        logits = float32_product(hidden, columns.T if options.transposed else columns)
    else:
        logits = matmul(
            hidden,
            columns,
            transposed=options.transposed,
            out_dtype=jnp.float32,
            implementation=options.products,
        )
    if options.soft_cap is not None:
        logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
    return logits / options.temperature


def float32_product(left: Array, right: Array) -> Array:
    """Multiply factors of one type, neither rounding them nor the result."""
    precision = product_precision(left.dtype)
    return jnp.matmul(left, right, precision=precision, preferred_element_type=jnp.float32)


def over_shards(sums: Sums, axis_name: str | None) -> Sums:
    """Combine the sums of all devices over the vocabulary."""
    if axis_name is None:
        return sums
    maximum = jax.lax.pmax(jax.lax.stop_gradient(sums.maximum), axis_name)
    lowered = lower(sums, maximum)
    return Sums(maximum, *jax.lax.psum(lowered[1:], axis_name))


def lower(sums: Sums, maximum: Array) -> Sums:
    """Convert sums to a maximum that is not smaller."""
    difference = sums.maximum - maximum
    ratio = jnp.exp(difference)
    moment = ratio * (sums.moment + difference * sums.total)
    return Sums(
        maximum, ratio * sums.total, moment, sums.selected, like(ratio, sums.masses) * sums.masses
    )


def like(values: Array, masses: Array) -> Array:
    """Values of rows, to be multiplied with their masses."""
    return values.reshape(-1, *(1,) * (masses.ndim - 1))


def results(sums: Sums) -> tuple[Array, Array, Array]:
    """Convert sums over all entries to results.

    They are the log-probability of the selected entry, entropy, and the probabilities that noise
    decides between.
    """
    log_total = jnp.log(sums.total)
    return (
        sums.selected - sums.maximum - log_total,
        log_total - sums.moment / sums.total,
        jax.lax.stop_gradient(sums.masses / like(sums.total, sums.masses)),
    )


def gathered(unembedding: Array, gather_axis: str | None) -> Array:
    """Gather all rows of the matrix, for the columns that are held here."""
    if gather_axis is None:
        return unembedding
    return jax.lax.all_gather(unembedding, gather_axis, axis=0, tiled=True)


def summed_like(gradient: Array, argument: Array, scatter_axis: str | None = None) -> Array:
    """Sum all devices' parts of the gradient to an argument, in the argument's dtype.

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
