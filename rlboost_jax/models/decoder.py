"""The decoder: the modules that the learner and the engine both run.

One decoder, described by its configuration, is Qwen, Llama, Mistral or Gemma;
`settings/huggingface/config.py` says which checkpoint is which.

Activations are flat, [N, E] over N tokens, whatever sequences the tokens belong to: dense
layers on [N, E] are twice as fast on CPU as on [B, T, E], and the engine has no sequences
to speak of. The caller decides what a token may attend to: attention arrives as a
function of queries, keys and values.

Products and sums over a row come in two forms, see `products.py`; matrices may have adapters, see
`lora.py`. Each parameter that starts random says its standard deviation as metadata (`std`), or
the bound of a uniform distribution (`bound`), from which `params.py` draws it; others say what
they start at (`start`).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels import matmul

from rlboost_jax.models.experts import Activation, RoutedMLP
from rlboost_jax.models.lookup import rows_of
from rlboost_jax.models.lora import linear
from rlboost_jax.models.products import normal, row_mean
from rlboost_jax.models.rope import cos_sin, ropes, turn
from rlboost_jax.models.tensor_parallel import gathered_columns, looked_up
from rlboost_jax.settings.model_config import ModelConfig

Attend = Callable[
    [Float[Array, "N H D"], Float[Array, "N K D"], Float[Array, "N K D"]], Float[Array, "N H D"]
]
QUERY_KEY_VALUE, GATE_UP = "query_key_value", "gate_up"  # of joined matrices
Local = (
    bool | Bool[Array, ""]
)  # whether a layer sees a window only; an array where layers are scanned


class RMSNorm(nnx.Module):
    """Scale the last axis to a root mean square of 1, in float32 whatever the input's dtype.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4; with `offset` the factor is
    1 + scale, as in Gemma.
    """

    def __init__(
        self, width: int, epsilon: float, by_row: bool = False, offset: bool = False
    ) -> None:
        start = 0.0 if offset else 1.0
        self.scale = nnx.Param(jnp.full(width, start), start=start)
        self.epsilon, self.by_row, self.offset = epsilon, by_row, offset

    def __call__(self, x: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
        x_f32 = x.astype(jnp.float32)
        mean_square = row_mean(jnp.square(x_f32), by_row=self.by_row)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), tuple(range(x.ndim - 1)))
        if self.offset:
            scale = 1 + scale
        return (x_f32 * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)


Product = Callable[
    ..., nnx.Module
]  # the module of a matrix: of its name and sizes, see `lora.linear`
Norm = Callable[[int], RMSNorm]  # of a width


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions and, optionally, normalised heads.

    Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); Qwen3 technical report
    2025, arXiv:2505.09388, section 2 (q/k norm); Gemma 3 technical report 2025, arXiv:2503.19786,
    section 2 (layers with a window and rotary frequencies of their own).
    """

    def __init__(
        self, config: ModelConfig, product: Product, norm: Norm, *, split: bool, joined: bool
    ) -> None:
        E, D, bias = config.embed_dim, config.head_dim, config.attention_bias
        heads, others = config.num_query_heads * D, config.num_key_heads * D
        if joined:
            self.query_key_value = product("", E, heads + 2 * others, bias=bias)
        else:
            self.query = product("q_proj", E, heads, bias=bias)
            self.key = product("k_proj", E, others, bias=bias)
            self.value = product("v_proj", E, others, bias=bias)
        self.output = product("o_proj", heads, E, bias=config.output_bias, split_inputs=split)
        if config.qk_norm:
            self.query_norm, self.key_norm = norm(D), norm(D)
        self.config, self.joined = config, joined

    def __call__(
        self, x: Float[Array, "N E"], positions: Int[Array, " N"], attend: Attend, local: Local
    ) -> Float[Array, "N E"]:
        N, D = x.shape[0], self.config.head_dim
        H, K = self.config.num_query_heads, self.config.num_key_heads
        if self.joined:
            q, k, v = jnp.split(self.query_key_value(x), (H * D, (H + K) * D), axis=1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = q.reshape(N, H, D), k.reshape(N, K, D), v.reshape(N, K, D)
        if self.config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        cos, sin = self._rotation(positions, local)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        return self.output(attend(q, k, v).reshape(N, H * D))

    def _rotation(
        self, positions: Int[Array, " N"], local: Local
    ) -> tuple[Float[Array, "N half"], Float[Array, "N half"]]:
        far, near = ropes(self.config)
        cos, sin = cos_sin(positions, self.config.head_dim, far)
        if near == far:
            return cos, sin
        near_cos, near_sin = cos_sin(positions, self.config.head_dim, near)
        return jnp.where(local, near_cos, cos), jnp.where(local, near_sin, sin)


class GatedMLP(nnx.Module):
    """SwiGLU or GeGLU. Source: Shazeer 2020, arXiv:2002.05202, equation 6."""

    def __init__(self, config: ModelConfig, product: Product, *, split: bool, joined: bool) -> None:
        self.joined = joined
        if joined:
            self.gate_up = product("", config.embed_dim, 2 * config.hidden_dim)
        else:
            self.gate = product("gate_proj", config.embed_dim, config.hidden_dim)
            self.up = product("up_proj", config.embed_dim, config.hidden_dim)
        self.down = product("down_proj", config.hidden_dim, config.embed_dim, split_inputs=split)
        self.activation = activation_of(config.activation)

    def __call__(self, x: Float[Array, "N E"]) -> Float[Array, "N E"]:
        both = jnp.split(self.gate_up(x), 2, axis=1) if self.joined else (self.gate(x), self.up(x))
        return self.down(self.activation(both[0]) * both[1])


class DecoderLayer(nnx.Module):
    """Attention, then the feed-forward layer, each on a normalised copy of the residual stream.

    With `post_norms` what they add to it is normalised, too. With `split`, which needs `by_row`, it
    is a device's share of a layer, see `tensor_parallel.py`. With `split_rows` each device of a
    mesh has some of the rows, see `products.linear`. With `joined` matrices that multiply the same
    rows are one, see `engine/joined.py`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        by_row: bool = False,
        split: bool = False,
        split_rows: bool = False,
        joined: bool = False,
    ) -> None:
        norm: Norm = partial(_norm, config, by_row=by_row)
        product: Product = partial(linear, config, rngs=rngs, by_row=by_row, split_rows=split_rows)
        self.attention_norm = norm(config.embed_dim)
        self.attention = Attention(config, product, norm, split=split, joined=joined)
        self.mlp_norm = norm(config.embed_dim)
        self.mlp: GatedMLP | RoutedMLP = (
            RoutedMLP(config, rngs, by_row, split, activation_of(config.activation))
            if config.num_experts
            else GatedMLP(config, product, split=split, joined=joined)
        )
        if config.post_norms:
            self.attention_post_norm = norm(config.embed_dim)
            self.mlp_post_norm = norm(config.embed_dim)
        self.config = config

    def __call__(
        self,
        x: Float[Array, "N E"],
        positions: Int[Array, " N"],
        attend: Attend,
        local: Local,
        experts: Int[Array, "N A"] | None,
        mesh: Mesh | None,
        grouped: str | None,
    ) -> tuple[Float[Array, "N E"], Int[Array, "N A"] | None]:
        """Run the layer, see `forward.apply_layer`."""
        added = self.attention(self.attention_norm(x), positions, attend, local)
        x = x + (self.attention_post_norm(added) if self.config.post_norms else added)
        if isinstance(self.mlp, RoutedMLP):
            added, experts = self.mlp(self.mlp_norm(x), experts, mesh, grouped)
        else:
            added = self.mlp(self.mlp_norm(x))
        return x + (self.mlp_post_norm(added) if self.config.post_norms else added), experts


class Embedding(nnx.Module):
    """Table with a row per vocabulary entry."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, split: bool = False) -> None:
        shape = (config.vocab_size, config.embed_dim)
        self.split = split
        self.table = normal(shape, 0.5, rngs)
        self.dtype = config.dtype
        self.factor = config.embed_dim**0.5 if config.scale_embeddings else None

    def __call__(self, tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
        table = self.table[...]
        x = (looked_up if self.split else rows_of)(table, tokens).astype(self.dtype)
        return x if self.factor is None else x * jnp.asarray(self.factor, self.dtype)


class Head(nnx.Module):
    """The last norm and the logits, which are float32 whatever the activations are.

    A tied head multiplies by the embedding's table and has no matrix of its own.
    """

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, by_row: bool = False, split: bool = False
    ) -> None:
        self.norm, self.split = _norm(config, config.embed_dim, by_row), split
        self.tied, self.soft_cap = config.tie_embeddings, config.final_soft_cap
        if not self.tied:  # small, so that a fresh model's next token is close to uniform
            shape = (config.embed_dim, config.vocab_size)
            self.kernel = normal(shape, 0.02, rngs)

    def __call__(
        self,
        x: Float[Array, "N E"],
        table: Float[Array, "V E"] | Float[Array, "_ E 32"] | Float[Array, "_ _ 64"],
    ) -> Float[Array, "N V"]:
        """Compute the logits, by row.

        Args:
            table: the embedding's, or its panels (`engine/weight_panels.py`).
        """
        kernel, by_rows = (table, table.ndim == 2) if self.tied else (self.kernel[...], False)
        x = self.norm(x)
        logits = matmul(x, kernel.astype(x.dtype), transposed=by_rows, out_dtype=jnp.float32)
        logits = gathered_columns(logits) if self.split else logits
        return self.soft_cap * jnp.tanh(logits / self.soft_cap) if self.soft_cap else logits

    def factors(
        self, x: Float[Array, "N E"], table: Float[Array, "V E"], *, as_stored: bool = False
    ) -> tuple[Float[Array, "N E"], Float[Array, "E V"] | Float[Array, "V E"]]:
        """Return the two matrices whose product the logits are before the soft cap.

        Args:
            as_stored: a tied matrix is the table itself; transposed it may be copied.
        """
        x = self.norm(x)
        tied = table if as_stored else table.T
        return x, (tied if self.tied else self.kernel[...]).astype(x.dtype)


class Decoder(nnx.Module):
    """The whole tree of parameters; every leaf of `layers` has the layer as its first axis.

    `forward.py` runs the parts: the learner scans over the layers, the engine unrolls them.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.embedding = Embedding(config, rngs=rngs)
        self.layers = _stacked_layers(config, rngs)
        self.head = Head(config, rngs=rngs)


def _stacked_layers(config: ModelConfig, rngs: nnx.Rngs) -> DecoderLayer:
    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def build(rngs: nnx.Rngs) -> DecoderLayer:
        return DecoderLayer(config, rngs=rngs)

    return build(rngs)


def _norm(config: ModelConfig, width: int, by_row: bool) -> RMSNorm:
    return RMSNorm(width, config.norm_epsilon, by_row, config.norm_offset)


def activation_of(name: str) -> Activation:
    """Activation function of a name."""
    return jax.nn.silu if name == "silu" else _gelu_tanh


def _gelu_tanh(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)
