"""Application of the decoder to plain parameters: one code path for learner and engine.

The modules' graph (everything but the arrays) is built once per configuration from shapes
alone and joined with whatever dict of arrays is passed, so that jitted functions see
nothing but arrays.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from rlboost_jax.models.attention import row_attention
from rlboost_jax.models.decoder import (
    QUERY_KEY_VALUE,
    Attend,
    DecoderLayer,
    Embedding,
    Head,
    Local,
)
from rlboost_jax.models.packed_attention import SAVED
from rlboost_jax.models.parameter_sharding import BATCH, batch_sharding, table_spec
from rlboost_jax.models.params import Params
from rlboost_jax.models.tensor_parallel import first_of
from rlboost_jax.settings.model_config import ModelConfig

# What the backward pass of a layer finds in memory besides the residual stream; `learner.remat`.
REMAT_POLICIES: Final = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(SAVED),
    ),
    "attention": jax.checkpoint_policies.save_only_these_names(SAVED),
    "full": jax.checkpoint_policies.nothing_saveable,
}
UNEMBEDDING: Final = "unembedding"  # a table as a tied head reads it fastest, if there is one
_UNROLLED_LAYERS = 4  # a loop halves the speed on CPU; deeper models would compile for too long


def embed(
    config: ModelConfig, params: Params, tokens: Int[Array, " N"], *, split: bool = False
) -> Float[Array, "N E"]:
    """The residual stream before the first layer, in `config.dtype`."""
    return nnx.merge(_graph(Embedding, config, split=split), params["embedding"])(tokens)


def apply_layer(
    config: ModelConfig,
    layer_params: Params,
    x: Float[Array, "N E"],
    positions: Int[Array, " N"],
    attend: Attend,
    *,
    local: Local = False,
    by_row: bool = False,
    split: bool = False,
    experts: Int[Array, "N A"] | None = None,
    mesh: Mesh | None = None,
    grouped: str | None = None,
) -> tuple[Float[Array, "N E"], Int[Array, "N A"] | None]:
    """Apply one layer to N tokens.

    Args:
        layer_params: of one layer, without the layer axis; matrices may be joined.
        positions: absolute position of each token in its own sequence.
        attend: called once, with rotated and normalised queries [N, H, D] and keys
            [N, K, D] and the values [N, K, D]; returns [N, H, D].
        local: whether this is a layer with a window, which may have its own rotary frequencies.
        by_row: whether a token's products depend on that token alone, see `products.py`.
        split: whether parameters and `config` are a device's share, see `tensor_parallel.py`.
        experts: the A experts that each token is to go to, such as those it went to when it was
            sampled; None lets the router choose.
        mesh: over which tokens are split; needed by experts, and for their sums of gradients.
        grouped: implementation of experts' products, see `rlboost_kernels.grouped_matmul`; None
            takes the best.

    Returns:
        The residual stream, and the experts that each token went to, the most probable first;
        None in a model without.
    """
    split_rows = mesh is not None and any(mesh.shape[axis] > 1 for axis in BATCH)
    graph = _graph(
        DecoderLayer,
        config,
        by_row=by_row,
        split=split,
        split_rows=split_rows,
        joined=QUERY_KEY_VALUE in layer_params["attention"],
    )
    return nnx.merge(graph, layer_params)(x, positions, attend, local, experts, mesh, grouped)


def head(
    config: ModelConfig, params: Params, x: Float[Array, "N E"], *, split: bool = False
) -> Float[Array, "N V"]:
    """Float32 logits of the token after each of the N, by row."""
    graph = _graph(Head, config, by_row=True, split=split)
    table = params.get(UNEMBEDDING, params["embedding"]["table"])
    return nnx.merge(graph, params["head"])(x, table)


def head_factors(
    config: ModelConfig,
    params: Params,
    x: Float[Array, "N E"],
    *,
    by_row: bool = False,
    as_stored: bool = False,
) -> tuple[Float[Array, "N E"], Float[Array, "E V"] | Float[Array, "V E"]]:
    """The two factors whose product `head` is, for callers that need no full logits.

    A model with `final_soft_cap` has logits of cap · tanh(product / cap).

    Args:
        as_stored: the matrix of a tied head is the table [V, E] itself.
    """
    graph = _graph(Head, config, by_row=by_row)
    table = params["embedding"]["table"]
    return nnx.merge(graph, params["head"]).factors(x, table, as_stored=as_stored)


def hidden_states_and_experts(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    remat: str,
    mesh: Mesh | None = None,
    attention: str = "auto",
    experts: Int[Array, "L B*T A"] | None = None,
    grouped: str | None = None,
) -> tuple[Float[Array, "B*T E"], Int[Array, "L B*T A"] | None]:
    """Residual stream after the last layer, before its norm, for packed rows.

    A token sees the tokens of its own segment at or before its own place in the row.

    Args:
        segments: which sequence each token of a row belongs to.
        remat: what to keep of a layer for the backward pass: "none" recomputes nothing, "dots"
            keeps what products with matrices and fused attention return and recomputes the rest
            (norms, scores that are no kernel's, the gate), "full" keeps the residual stream before
            the layer alone, and "attention" what fused attention returns beside it.
        mesh: where to keep the rows split; None leaves the layout alone.
        attention: a way of `attention.py`; with "paged", products are by row, so that all is
            computed in the engine's order.
        experts: that each of the L layers is to send each token to; None asks the routers.
        grouped: implementation of experts' products, see `rlboost_kernels.grouped_matmul`.

    Returns:
        The residual stream and, of a model with experts, those that were taken.
    """

    def keep_split(x: Float[Array, "N E"]) -> Float[Array, "N E"]:
        return x if mesh is None else jax.lax.with_sharding_constraint(x, batch_sharding(mesh))

    attend = row_attention(config, segments, attention, mesh)
    locals_L = np.array([window > 0 for window in config.layer_windows])
    one_kind, mixed = bool(locals_L[0]), locals_L.any() and not locals_L.all()

    def layer(
        x: Float[Array, "N E"], scanned: tuple[Params, Array | None, Array | None]
    ) -> tuple[Float[Array, "N E"], Int[Array, "N A"] | None]:
        layer_params, local, experts = scanned
        kind: Local = one_kind if local is None else local
        x, chosen = apply_layer(
            config,
            layer_params,
            x,
            positions.reshape(-1),
            attend(kind),
            local=kind,
            by_row=attention == "paged",
            experts=experts,
            mesh=mesh,
            grouped=grouped,
        )
        return keep_split(x), chosen

    x = keep_split(_embedded(config, params, tokens.reshape(-1), mesh))
    unroll = config.num_layers <= _UNROLLED_LAYERS
    # Only what is unrolled could be merged with the forward pass again, and so kept after all.
    return jax.lax.scan(
        _rematerialised(layer, remat, prevent_cse=unroll),
        x,
        (params["layers"], jnp.asarray(locals_L) if mixed else None, experts),
        unroll=unroll,
    )


def _embedded(
    config: ModelConfig, params: Params, tokens: Int[Array, " N"], mesh: Mesh | None
) -> Float[Array, "N E"]:
    """Embed tokens, both tokens and table being split over a mesh.

    A device looks up all tokens in its own columns, then columns are exchanged for rows: a
    fraction of the bytes of a gathered table, which no device holds. The gradient of an entry
    is the float32 sum over the tokens of all devices, in one order (`lookup.py`).
    """
    table = params["embedding"]["table"]
    if mesh is None or mesh.size == 1:
        return embed(config, params, tokens)
    spec = table_spec(table.shape, mesh)
    over_entries, over_columns = spec
    copies = tuple(axis for axis in BATCH if axis not in spec)  # of the table, for other tokens
    rows = PartitionSpec(BATCH)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(spec, rows), out_specs=rows)
    def of_device(table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
        if copies:
            table = jax.lax.pcast(table, copies, to="varying")
        if over_columns is not None:
            tokens = jax.lax.all_gather(tokens, over_columns, tiled=True)
        if over_entries is None:
            x = embed(config, {"embedding": {"table": table}}, tokens)
        else:
            mine = tokens - first_of(len(table))
            inside = (mine >= 0) & (mine < len(table))
            held = jnp.clip(mine, 0, len(table) - 1)
            x = embed(config, {"embedding": {"table": table}}, held)
            x = jnp.where(inside[:, None], x, 0)
        if over_columns is not None:
            x = jax.lax.all_to_all(x, over_columns, split_axis=0, concat_axis=1, tiled=True)
        return x if over_entries is None else jax.lax.psum(x, over_entries)

    return of_device(table, tokens)


def _rematerialised(
    layer: Callable[..., Any], remat: str, *, prevent_cse: bool
) -> Callable[..., Any]:
    if remat == "none":
        return layer
    policy = REMAT_POLICIES[remat]
    rematerialised: Callable[..., Any] = jax.checkpoint(
        layer, policy=policy, prevent_cse=prevent_cse
    )
    return rematerialised


@functools.cache
def _graph(part: type[nnx.Module], config: ModelConfig, **options: bool) -> nnx.GraphDef:
    module = nnx.eval_shape(lambda: part(config, rngs=nnx.Rngs(0), **options))  # type: ignore[call-arg]
    return nnx.graphdef(module)
