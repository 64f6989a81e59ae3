"""Running the decoder on plain parameters: one code path for learner and engine.

The modules' graph (everything but the arrays) is built once per configuration from shapes
alone and joined with whatever dict of arrays is passed, so that jitted functions see
nothing but arrays.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rlboost_jax.config.records import ModelConfig
from rlboost_jax.models.decoder import Attend, DecoderLayer, Embedding, Head
from rlboost_jax.models.params import Params
from rlboost_jax.models.sharding import batch_sharding

_MASKED = -1e30  # a score that weighs exactly 0 after the softmax and never makes a NaN
_UNROLLED_LAYERS = 4  # a loop halves the speed on CPU; deeper models would compile for too long


def embed(config: ModelConfig, params: Params, tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    """The residual stream before the first layer, in `config.dtype`."""
    return nnx.merge(_graph(Embedding, config), params["embedding"])(tokens)


def apply_layer(
    config: ModelConfig,
    layer_params: Params,
    x: Float[Array, "N E"],
    positions: Int[Array, " N"],
    attend: Attend,
) -> Float[Array, "N E"]:
    """One layer over N tokens.

    Args:
        layer_params: of one layer, without the layer axis.
        positions: absolute position of each token in its own sequence.
        attend: called once, with rotated and normalised queries [N, H, D] and keys
            [N, K, D] and the values [N, K, D]; returns [N, H, D].
    """
    return nnx.merge(_graph(DecoderLayer, config), layer_params)(x, positions, attend)


def head(config: ModelConfig, params: Params, x: Float[Array, "N E"]) -> Float[Array, "N V"]:
    """Float32 logits of the token after each of the N."""
    return nnx.merge(_graph(Head, config), params["head"])(x, params["embedding"]["table"])


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    remat: bool,
    mesh: Mesh | None = None,
) -> Float[Array, "B*T E"]:
    """The residual stream after the last layer, before its norm, for packed rows.

    A token sees the tokens of its own segment at or before its own place in the row.

    Args:
        segments: which sequence each token of a row belongs to.
        remat: keep one residual stream per layer and recompute the rest backwards.
        mesh: where to keep the rows split; None leaves the layout alone.
    """

    def keep_split(x: Float[Array, "N E"]) -> Float[Array, "N E"]:
        return x if mesh is None else jax.lax.with_sharding_constraint(x, batch_sharding(mesh))

    attend = functools.partial(_attend_rows, visible=_visible(segments))

    def layer(x: Float[Array, "N E"], layer_params: Params) -> tuple[Float[Array, "N E"], None]:
        return keep_split(apply_layer(config, layer_params, x, positions.reshape(-1), attend)), None

    x = keep_split(embed(config, params, tokens.reshape(-1)))
    x, _ = jax.lax.scan(
        jax.checkpoint(layer) if remat else layer,
        x,
        params["layers"],
        unroll=config.num_layers <= _UNROLLED_LAYERS,
    )
    return x


def _visible(segments: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Entry [b, t, s]: may token t of row b look at token s?"""
    T = segments.shape[1]
    causal = jnp.tril(jnp.ones((1, T, T), bool))
    return causal & (segments[:, :, None] == segments[:, None, :])


def _attend_rows(
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    *,
    visible: Bool[Array, "B T T"],
) -> Float[Array, "N H D"]:
    """Dense attention within rows of equal length, with float32 scores."""
    (N, H, D), K, (B, T, _) = q.shape, k.shape[1], visible.shape
    # Scaled before the product and not after it, as in the engine's kernel: large scores then
    # round alike in both, and the log-probabilities of both agree a few times better.
    q = (q.astype(jnp.float32) * D**-0.5).astype(q.dtype)
    q_BKGTD = q.reshape(B, T, K, H // K, D).transpose(0, 2, 3, 1, 4)
    k_BKSD = k.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    v_BKSD = v.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    scores = jnp.einsum("bkgtd,bksd->bkgts", q_BKGTD, k_BKSD, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out_BKGTD = jnp.einsum("bkgts,bksd->bkgtd", weights, v_BKSD)
    return out_BKGTD.transpose(0, 3, 1, 2, 4).reshape(N, H, D)


@functools.cache
def _graph(part: type[nnx.Module], config: ModelConfig) -> nnx.GraphDef:
    module = nnx.eval_shape(lambda: part(config, rngs=nnx.Rngs(0)))  # type: ignore[call-arg]
    return nnx.graphdef(module)
