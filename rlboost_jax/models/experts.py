"""A feed-forward layer that is one of many: every token chooses its experts, and none is dropped.

There are three forms, equal up to rounding.

*Grouped*, for a learner on GPUs, in `grouped_experts.py`: the choices of all tokens are laid out
expert by expert and multiplied group by group (`rlboost_kernels.grouped`). Nothing has a capacity,
and what it costs is what was chosen. On a mesh, experts lie along the `tensor` axis: its devices
have the same tokens, each works for the experts that it holds, and the parts are added up as those
of a dense layer split over `tensor` are; no token has to travel.

*Sorted*, for a learner elsewhere: the same with `jax.lax.ragged_dot` and plain sorting. On CPU and
on GPU it is a dense product of all rows with all experts.

*By row*, for the engine: every expert in turn, over all rows, with the products of
`rlboost_kernels.matmul`, added up in the order of experts, where a row that did not choose the
expert adds nothing. What a row comes to depends on that row alone. `ragged_dot` promises nothing
of the kind: on CPU its bits change with the number of rows. The price is products that nobody asked
for; but a step with enough rows to reach most experts reads all their matrices either way, and
reading is what a step of a few hundred rows waits for.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int
from rlboost_kernels import matmul, product_precision
from rlboost_kernels.grouped.grouped_api import choose_grouped

from rlboost_jax.models.grouped_experts import Activation, How, Matrices, added_by_experts
from rlboost_jax.models.products import float32_product, normal, row_mean
from rlboost_jax.models.tensor_parallel import added_up, first_of
from rlboost_jax.settings.model_config import ModelConfig


class Router(nnx.Module):
    """Router that chooses each token's experts and their weights."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, by_row: bool) -> None:
        shape = (config.embed_dim, config.num_experts)
        self.kernel = normal(shape, config.embed_dim**-0.5, rngs)
        self.config, self.by_row = config, by_row

    def __call__(
        self, x: Float[Array, "N E"], chosen: Int[Array, "N A"] | None
    ) -> tuple[Int[Array, "N A"], Float[Array, "N A"]]:
        """Experts of each token, the most probable first, and their weights.

        Args:
            chosen: experts that are to be taken instead, with the weights that they have now.

        Source: Qwen3 technical report 2025, arXiv:2505.09388, section 2; softmax before the
        choice and, with `normalize_experts`, weights that add up to 1.
        """
        logits = float32_product(x, self.kernel[...], by_row=self.by_row)
        if chosen is None:
            chosen = jax.lax.top_k(logits, self.config.experts_per_token)[1]
        taken = jax.vmap(_taken)(logits, chosen)  # row by row, as a mesh shares them out
        if self.config.normalize_experts:  # column by column, whatever the number of rows
            weights = jnp.exp(taken - _highest(taken))
            columns = jnp.split(weights, weights.shape[1], axis=1)
            return chosen, weights / sum(columns[1:], start=columns[0])
        highest = _highest(logits)
        parts, weights = jnp.exp(logits - highest), jnp.exp(taken - highest)
        total = row_mean(parts, by_row=self.by_row) * parts.shape[-1]
        return chosen, weights / total


def _taken(logits: Float[Array, " X"], chosen: Int[Array, " A"]) -> Float[Array, " A"]:
    """Logits of the chosen experts.

    No expert is chosen twice, so the gradient has one order without XLA enforcing it.
    """
    return logits.at[chosen].get(unique_indices=True, mode="promise_in_bounds")


def _highest(logits: Float[Array, "N _"]) -> Float[Array, "N 1"]:
    """Maximum of each row, to be subtracted so that no exponential of the softmax overflows."""
    return jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))


class Experts(nnx.Module):
    """Stacked matrices of X gated layers of width F."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        X, E, F = config.num_experts, config.embed_dim, config.expert_dim
        self.gate = normal((X, E, F), E**-0.5, rngs)
        self.up = normal((X, E, F), E**-0.5, rngs)
        self.down = normal((X, F, E), F**-0.5, rngs)

    def matrices(self) -> tuple[Array, Array, Array]:
        return self.gate[...], self.up[...], self.down[...]


class RoutedMLP(nnx.Module):
    """Mixture of experts: a router and experts in place of one gated layer."""

    def __init__(
        self,
        config: ModelConfig,
        rngs: nnx.Rngs,
        by_row: bool,
        split: bool,
        activation: Activation,
    ) -> None:
        self.router = Router(config, rngs, by_row)
        self.experts = Experts(config, rngs)
        self.by_row, self.split, self.activation = by_row, split, activation

    def __call__(
        self,
        x: Float[Array, "N E"],
        chosen: Int[Array, "N A"] | None,
        mesh: Mesh | None,
        grouped: str | None,
    ) -> tuple[Float[Array, "N E"], Int[Array, "N A"]]:
        """Run the layer; also returns the experts of each token.

        Args:
            chosen: experts to go to; None asks the router.
            mesh: over which rows and experts are split; None: all is on one device.
            grouped: implementation of the products of groups of rows; None takes the best.
        """
        chosen, weights = self.router(x, chosen)
        gate, up, down = (matrix.astype(x.dtype) for matrix in self.experts.matrices())
        matrices = gate, up, down
        name = choose_grouped("xla" if self.by_row else grouped, x.dtype, *gate.shape[1:])
        if name != "xla":
            how = How(mesh, self.activation, name)
            out = added_by_experts(how, x, chosen, weights, Matrices(gate, up, down))
        elif self.by_row:
            by_row = partial(_by_row, x, chosen, weights, *matrices, activation=self.activation)
            out = added_up(by_row(first=first_of(len(gate)))) if self.split else by_row()
        elif mesh is None or mesh.size == 1:
            out = _sorted(x, chosen, weights, *matrices, activation=self.activation)
        else:
            out = _sharded(x, chosen, weights, *matrices, mesh=mesh, activation=self.activation)
        return out.astype(x.dtype), chosen


def _by_row(
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    gate: Float[Array, "X E F"],
    up: Float[Array, "X E F"],
    down: Float[Array, "X F E"],
    *,
    activation: Activation,
    first: int | Int[Array, ""] = 0,
) -> Float[Array, "N E"]:
    """Sum of the outputs of the experts from `first` on, for each token."""

    @jax.checkpoint  # backwards, one expert's activations at a time
    def add(
        total: Float[Array, "N E"], expert: tuple[Array, ...]
    ) -> tuple[Float[Array, "N E"], None]:
        index, gate, up, down = expert
        out = matmul(activation(matmul(x, gate)) * matmul(x, up), down, out_dtype=jnp.float32)
        here = chosen == index  # at most one of a row
        weight = jnp.where(here, weights, 0.0).sum(axis=1, keepdims=True)
        return total + jnp.where(here.any(axis=1, keepdims=True), weight * out, 0.0), None

    indices = jnp.arange(len(gate), dtype=chosen.dtype) + first
    start = jnp.zeros(x.shape, jnp.float32)
    return jax.lax.scan(add, start, (indices, gate, up, down))[0]


def _sorted(
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    gate: Float[Array, "X E F"],
    up: Float[Array, "X E F"],
    down: Float[Array, "X F E"],
    *,
    activation: Activation,
    first: int | Int[Array, ""] = 0,
) -> Float[Array, "N E"]:
    """Sum of the outputs of the experts from `first` on, for each token; other choices add 0.

    Rows are repeated and then permuted, rather than gathered, so that the gradient is a sum over
    a token's choices in their order, where a scatter might add them in any.
    """
    (N, A), X = chosen.shape, len(gate)
    mine = (chosen - first).reshape(N * A)
    mine = jnp.where((mine >= 0) & (mine < X), mine, X)  # others' come last, in no group
    order = jnp.argsort(mine, stable=True)
    back = jnp.argsort(order)
    sizes = (mine[:, None] == jnp.arange(X)[None, :]).sum(axis=0, dtype=jnp.int32)
    rows = _permuted(jnp.repeat(x, A, axis=0), order)
    product = partial(jax.lax.ragged_dot, precision=product_precision(x.dtype))
    hidden = activation(product(rows, gate, sizes))
    hidden = hidden * product(rows, up, sizes)
    out = product(hidden, down, sizes, preferred_element_type=jnp.float32)
    out = jnp.where((jnp.arange(N * A) < sizes.sum())[:, None], out, 0.0)
    out_NAE = _permuted(out, back).reshape(N, A, -1)
    return (out_NAE * weights[:, :, None]).sum(axis=1)


def _permuted(rows: Float[Array, "M E"], order: Int[Array, " M"]) -> Float[Array, "M E"]:
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")


def _sharded(
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    gate: Float[Array, "X E F"],
    up: Float[Array, "X E F"],
    down: Float[Array, "X F E"],
    *,
    mesh: Mesh,
    activation: Activation,
) -> Float[Array, "N E"]:
    """`_sorted` on every device, over its rows and its experts.

    Where the `tensor` axis does not divide the experts, every device has all of them.
    """
    split = len(gate) % mesh.shape["tensor"] == 0
    rows, experts = PartitionSpec(("data", "fsdp")), PartitionSpec("tensor" if split else None)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(rows, rows, rows, experts, experts, experts),
        out_specs=rows,
    )
    def on_device(
        x: Array, chosen: Array, weights: Array, gate: Array, up: Array, down: Array
    ) -> Array:
        if not split:
            return _sorted(x, chosen, weights, gate, up, down, activation=activation)
        # Each device's own copy from here on, so that the gradient is the sum of all of theirs.
        x, weights = (jax.lax.pcast(a, ("tensor",), to="varying") for a in (x, weights))
        first = jax.lax.axis_index("tensor") * len(gate)
        part = _sorted(x, chosen, weights, gate, up, down, activation=activation, first=first)
        return jax.lax.psum(part, "tensor")

    return on_device(x, chosen, weights, gate, up, down)
