"""Outputs of experts by grouped matrix products, with a hand-written gradient.

The choices of all tokens are laid out expert by expert, each expert's from a multiple of 128 rows
on, and choices of experts that other devices hold are left out. No choice is dropped, so that
there may have to be room for all of them; but a device that holds a quarter of the experts has a
quarter of the choices on average. Rows are therefore computed in *shares* of a quarter more than
that: the first one always, others in a loop that runs as often as there is something left. With
balanced experts that is never, and memory and work are those of the rows that a device has.

Nothing is kept for the gradient but the arguments, whatever `remat` says: rows, gate and up are
computed again, and no more than that. A choice's weight is multiplied into the hidden layer,
which is narrower than what comes out and is at hand when the weight's gradient is taken.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int
from rlboost_kernels.grouped.grouped_api import Implementation, Products, products
from rlboost_kernels.grouped.layout import Layout, room, rows_by_group, taken

from rlboost_jax.settings.memory_estimates import expert_rows

Activation = Callable[[Array], Array]


class How(NamedTuple):
    """Static parameters of the layer."""

    mesh: Mesh | None  # over which rows and experts are split; None: all is on one device
    activation: Activation
    implementation: Implementation
    interpret: bool = False  # "mosaic_gpu" on CPU, for tests

    @property
    def products(self) -> Products:
        return products(self.implementation, interpret=self.interpret)


class Matrices(NamedTuple):
    """Matrices of X experts of width F."""

    gate: Float[Array, "X E F"]
    up: Float[Array, "X E F"]
    down: Float[Array, "X F E"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def added_by_experts(
    how: How,
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    matrices: Matrices,
) -> Float[Array, "N E"]:
    """Float32 sums of expert outputs over each token's choices, in their order."""
    return _on_devices(how, _outputs, "rows")(x, chosen, weights, matrices)


def _forward(how: How, *kept: Any) -> tuple[Array, tuple[Any, ...]]:
    return added_by_experts(how, *kept), kept


def _backward(how: How, kept: tuple[Any, ...], upstream: Float[Array, "N E"]) -> tuple[Any, ...]:
    x, chosen, weights, matrices = kept
    run = _on_devices(how, _gradients, ("rows", "rows", "experts"))
    to_x, to_weights, to_matrices = run(x, chosen, weights, matrices, upstream.astype(x.dtype))
    return to_x, None, to_weights, to_matrices


added_by_experts.defvjp(_forward, _backward)


def _on_devices(how: How, run: Callable[..., Any], results: Any) -> Callable[..., Any]:
    """Run on each device's rows and experts, whose matrices it holds whole meanwhile.

    Where the `tensor` axis does not divide the experts, every device has all of them.

    Args:
        results: "rows" or "experts" for each that `run` returns.
    """
    mesh = how.mesh
    if mesh is None or mesh.size == 1:
        return partial(run, how, first=0, parts=1)

    def call(x: Array, chosen: Array, weights: Array, matrices: Matrices, *more: Array) -> Any:
        parts = mesh.shape["tensor"] if len(matrices.gate) % mesh.shape["tensor"] == 0 else 1
        rows = PartitionSpec(("data", "fsdp"))
        specs = tuple(_spec(mesh, m, axis) for m, axis in zip(matrices, _SPLIT, strict=True))
        experts = Matrices._make(specs)

        def on_device(*arguments: Any) -> Any:
            x, chosen, weights, shards, *more = arguments
            held = len(shards.gate)
            first = jax.lax.axis_index("tensor") * held if parts > 1 else 0
            whole = Matrices(*map(_gathered, shards, specs))
            found = run(how, x, chosen, weights, whole, *more, first=first, parts=parts)
            return jax.tree.map(partial(_reduced, specs), results, found)

        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(rows, rows, rows, experts, *(rows for _ in more)),
            out_specs=jax.tree.map({"rows": rows, "experts": experts}.__getitem__, results),
            check_vma=False,  # which kernels cannot say of their results; sums are written out
        )(x, chosen, weights, matrices, *more)

    return call


# Axis of each matrix that lies along `fsdp`, see `parameter_sharding.py`.
_SPLIT: Final = (1, 1, 2)


def _spec(mesh: Mesh, matrices: Array, axis: int) -> PartitionSpec:
    """Partition spec as in `parameter_sharding.py`: mesh axes that do not divide leave arrays
    whole.
    """
    over: list[str | None] = [None, None, None]
    for name, place in (("tensor", 0), ("fsdp", axis)):
        if matrices.shape[place] % mesh.shape[name] == 0:
            over[place] = name
    return PartitionSpec(*over)


def _gathered(shard: Array, spec: PartitionSpec) -> Array:
    """Gather an array over `fsdp`, part by part, then concatenate."""
    if "fsdp" not in spec:
        return shard
    axis = tuple(spec).index("fsdp")
    parts = jnp.moveaxis(jax.lax.all_gather(shard, "fsdp"), 0, axis)
    return parts.reshape(*shard.shape[:axis], -1, *shard.shape[axis + 1 :])


def _reduced(specs: tuple[PartitionSpec, ...], result: str, found: Any) -> Any:
    """Sum the gradients of all devices; each device gets its part of the sum."""
    if result == "rows":
        return found
    return Matrices(
        *(_scattered(jax.lax.psum(f, "data"), s) for f, s in zip(found, specs, strict=True))
    )


def _scattered(whole: Array, spec: PartitionSpec) -> Array:
    if "fsdp" not in spec:
        return jax.lax.psum(whole, "fsdp")
    axis, devices = tuple(spec).index("fsdp"), jax.lax.axis_size("fsdp")
    parts = whole.reshape(*whole.shape[:axis], devices, -1, *whole.shape[axis + 1 :])
    return jax.lax.psum_scatter(jnp.moveaxis(parts, axis, 0), "fsdp")


class _Share(NamedTuple):
    """Some of the places of choices."""

    sizes: Int[Array, " X"]  # rows of each expert
    token: Int[Array, " C"]  # of each place; N where there is none
    weight: Float[Array, "C 1"]  # 0 where there is none
    place: Int[Array, "N A"]  # of each choice; C if it is not here


def _outputs(
    how: How,
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    matrices: Matrices,
    *,
    first: int | Int[Array, ""],
    parts: int,
) -> Float[Array, "N E"]:
    def of_share(share: _Share) -> Float[Array, "N E"]:
        rows = taken(x, share.token)
        gate, up = how.products.product(rows, (matrices.gate, matrices.up), share.sizes)
        hidden = _hidden(how, gate, up, share.weight)
        (out,) = how.products.product(hidden, (matrices.down,), share.sizes)
        return _added_up(out, share)

    out = _over_shares(of_share, chosen, weights, len(matrices.gate), first, parts)
    return jax.lax.psum(out, "tensor") if parts > 1 else out


def _gradients(
    how: How,
    x: Float[Array, "N E"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    matrices: Matrices,
    upstream: Float[Array, "N E"],
    *,
    first: int | Int[Array, ""],
    parts: int,
) -> tuple[Float[Array, "N E"], Float[Array, "N A"], Matrices]:
    product, total, outer = how.products

    def of_share(share: _Share) -> tuple[Array, Array, Matrices]:
        rows, upstream_rows = taken(x, share.token), taken(upstream, share.token)
        gate, up = product(rows, (matrices.gate, matrices.up), share.sizes)
        (to_hidden,) = product(upstream_rows, (matrices.down,), share.sizes, transposed=True)
        hidden, pull = jax.vjp(partial(_hidden, how), gate, up, share.weight)
        to_gate, to_up, to_weight = pull(to_hidden)
        (to_down,) = outer(hidden, (upstream_rows,), share.sizes)
        of_gate, of_up = outer(rows, (to_gate, to_up), share.sizes)
        to_rows = total(
            (to_gate, to_up), (matrices.gate, matrices.up), share.sizes, transposed=True
        )
        to_weights = taken(to_weight[:, 0], share.place.reshape(-1)).reshape(share.place.shape)
        return _added_up(to_rows, share), to_weights, Matrices(of_gate, of_up, to_down)

    found = _over_shares(of_share, chosen, weights, len(matrices.gate), first, parts)
    to_x, to_weights, to_matrices = found
    to_x = to_x.astype(x.dtype)
    if parts > 1:
        to_x, to_weights = jax.lax.psum((to_x, to_weights), "tensor")
    return to_x, to_weights, to_matrices


def _hidden(
    how: How, gate: Float[Array, "C F"], up: Float[Array, "C F"], weight: Float[Array, "C 1"]
) -> Float[Array, "C F"]:
    """Hidden layer, computed in float32 and rounded once."""
    wide = how.activation(gate.astype(jnp.float32)) * up.astype(jnp.float32)
    return (wide * weight).astype(gate.dtype)


def _added_up(rows: Float[Array, "C E"], share: _Share) -> Float[Array, "N E"]:
    """Add rows one choice after the other, where a scatter might add them in any order."""
    parts = [taken(rows, place).astype(jnp.float32) for place in share.place.T]
    return sum(parts[1:], start=parts[0])


def _over_shares(
    of_share: Callable[[_Share], Any],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    held: int,
    first: int | Int[Array, ""],
    parts: int,
) -> Any:
    """Sum over all shares that are not empty.

    Args:
        held: experts of this device.
        first: the first of them.
        parts: devices that have different experts.
    """
    (N, A), mine = chosen.shape, (chosen - first).reshape(-1)
    C, most = expert_rows(N * A, held, parts), room(N * A, held)
    with jax.named_scope("layout"):
        mine = jnp.where((mine >= 0) & (mine < held), mine, held)
        found = rows_by_group(mine, held)
        missing = jnp.full(-most % C, N * A, jnp.int32)
        found = found._replace(source=jnp.concatenate([found.source, missing]))
        ends = jnp.cumsum(found.sizes)

    def share(number: int | Array) -> _Share:
        return _share(found, ends, weights, number * C, C, most)

    so_far = of_share(share(0))
    if most <= C:
        return so_far

    def add(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        number, so_far = carry
        return number + 1, jax.tree.map(jnp.add, so_far, of_share(share(number)))

    def left(carry: tuple[Array, Any]) -> Array:
        return carry[0] * C < ends[-1]

    with jax.named_scope("more_shares"):
        return jax.lax.while_loop(left, add, (jnp.int32(1), so_far))[1]


def _share(
    found: Layout,
    ends: Int[Array, " X"],
    weights: Float[Array, "N A"],
    start: int | Array,
    C: int,
    most: int,
) -> _Share:
    """Share of C places from `start` on.

    Args:
        ends: place after each expert's last one.
        most: places that there are; of choices of other devices' experts.
    """
    N, A = weights.shape
    source = jax.lax.dynamic_slice_in_dim(found.source, start, C)
    at = found.place - start
    here = (found.place < most) & (at >= 0) & (at < C)
    inside = partial(jnp.clip, min=0, max=C)
    return _Share(
        sizes=inside(ends - start) - inside(ends - found.sizes - start),
        token=source // A,  # N * A // A where there is none
        weight=taken(weights.reshape(-1), source)[:, None],
        place=jnp.where(here, at, C).reshape(N, A),
    )
