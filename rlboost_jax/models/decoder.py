"""A Qwen3-shaped decoder: the modules that the learner and the engine both run.

Activations are flat, [N, E] over N tokens, whatever sequences the tokens belong to: dense
layers on [N, E] are twice as fast on CPU as on [B, T, E], and the engine has no sequences
to speak of. What a token may look at is the caller's business: attention arrives as a
function of queries, keys and values.

Products with matrices and sums over a row are XLA's own or, with `by_row`, those of
`rlboost_kernels.matmul`, which give a row the same bits in any company and number: what the
engine needs, and a learner that wants to agree with it.

Matrices are stored [in, out] and nothing has a bias. Each parameter that starts random says
its standard deviation as metadata (`std`), from which `params.py` draws it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from rlboost_kernels import matmul

from rlboost_jax.config.records import ModelConfig
from rlboost_jax.models.rope import rotate

Attend = Callable[
    [Float[Array, "N H D"], Float[Array, "N K D"], Float[Array, "N K D"]], Float[Array, "N H D"]
]


class RMSNorm(nnx.Module):
    """Scale the last axis to a root mean square of 1, in float32 whatever the input's dtype.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """

    def __init__(self, width: int, epsilon: float, by_row: bool = False) -> None:
        self.scale = nnx.Param(jnp.ones(width))
        self.epsilon, self.by_row = epsilon, by_row

    def __call__(self, x: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
        x_f32 = x.astype(jnp.float32)
        mean = _mean_by_row if self.by_row else _mean
        mean_square = mean(jnp.square(x_f32))
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), tuple(range(x.ndim - 1)))
        return (x_f32 * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions and, optionally, normalised heads.

    Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); Qwen3 technical report
    2025, arXiv:2505.09388, section 2 (q/k norm).
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, by_row: bool) -> None:
        E, D = config.embed_dim, config.head_dim
        linear = partial(_linear, config, rngs=rngs, by_row=by_row)
        self.query = linear(E, config.num_query_heads * D)
        self.key = linear(E, config.num_key_heads * D)
        self.value = linear(E, config.num_key_heads * D)
        self.output = linear(config.num_query_heads * D, E)
        if config.qk_norm:
            self.query_norm = RMSNorm(D, config.norm_epsilon, by_row)
            self.key_norm = RMSNorm(D, config.norm_epsilon, by_row)
        self.config = config

    def __call__(
        self, x: Float[Array, "N E"], positions: Int[Array, " N"], attend: Attend
    ) -> Float[Array, "N E"]:
        N, D = x.shape[0], self.config.head_dim
        q = self.query(x).reshape(N, self.config.num_query_heads, D)
        k = self.key(x).reshape(N, self.config.num_key_heads, D)
        v = self.value(x).reshape(N, self.config.num_key_heads, D)
        if self.config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q = rotate(q, positions, theta=self.config.rope_theta)
        k = rotate(k, positions, theta=self.config.rope_theta)
        return self.output(attend(q, k, v).reshape(N, self.config.num_query_heads * D))


class GatedMLP(nnx.Module):
    """SwiGLU. Source: Shazeer 2020, arXiv:2002.05202, equation 6."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, by_row: bool) -> None:
        linear = partial(_linear, config, rngs=rngs, by_row=by_row)
        self.gate = linear(config.embed_dim, config.hidden_dim)
        self.up = linear(config.embed_dim, config.hidden_dim)
        self.down = linear(config.hidden_dim, config.embed_dim)

    def __call__(self, x: Float[Array, "N E"]) -> Float[Array, "N E"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nnx.Module):
    """Attention, then the gated layer, each on a normalised copy of the residual stream."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, by_row: bool = False) -> None:
        self.attention_norm = RMSNorm(config.embed_dim, config.norm_epsilon, by_row)
        self.attention = Attention(config, rngs, by_row)
        self.mlp_norm = RMSNorm(config.embed_dim, config.norm_epsilon, by_row)
        self.mlp = GatedMLP(config, rngs, by_row)

    def __call__(
        self, x: Float[Array, "N E"], positions: Int[Array, " N"], attend: Attend
    ) -> Float[Array, "N E"]:
        x = x + self.attention(self.attention_norm(x), positions, attend)
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nnx.Module):
    """A row per vocabulary entry."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        shape = (config.vocab_size, config.embed_dim)
        self.table = _normal(shape, 0.5, rngs)
        self.dtype = config.dtype

    def __call__(self, tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
        return self.table[...][tokens].astype(self.dtype)


class Head(nnx.Module):
    """The last norm and the logits, which are float32 whatever the activations are.

    A tied head multiplies by the embedding's table and has no matrix of its own.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, by_row: bool = False) -> None:
        self.norm = RMSNorm(config.embed_dim, config.norm_epsilon, by_row)
        self.tied = config.tie_embeddings
        if not self.tied:  # small, so that a fresh model's next token is close to uniform
            shape = (config.embed_dim, config.vocab_size)
            self.kernel = _normal(shape, 0.02, rngs)

    def __call__(self, x: Float[Array, "N E"], table: Float[Array, "V E"]) -> Float[Array, "N V"]:
        """With the product by row."""
        kernel = table if self.tied else self.kernel[...]
        x = self.norm(x)
        return matmul(x, kernel.astype(x.dtype), transposed=self.tied, out_dtype=jnp.float32)

    def factors(
        self, x: Float[Array, "N E"], table: Float[Array, "V E"]
    ) -> tuple[Float[Array, "N E"], Float[Array, "E V"]]:
        x = self.norm(x)
        kernel = table.T if self.tied else self.kernel[...]
        return x, kernel.astype(x.dtype)


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


def _normal(shape: tuple[int, ...], std: float, rngs: nnx.Rngs) -> nnx.Param:
    return nnx.Param(std * jax.random.normal(rngs.params(), shape), std=std)


def _linear(
    config: ModelConfig, size_in: int, size_out: int, *, rngs: nnx.Rngs, by_row: bool
) -> nnx.Linear:
    std = size_in**-0.5
    return nnx.Linear(
        size_in,
        size_out,
        use_bias=False,
        dtype=jnp.dtype(config.dtype),
        dot_general=_product_by_row if by_row else jax.lax.dot_general,
        kernel_init=nnx.initializers.normal(std),
        kernel_metadata={"std": std},
        rngs=rngs,
    )


def _mean(x: Float[Array, "*rows E"]) -> Float[Array, "*rows 1"]:
    return jnp.mean(x, axis=-1, keepdims=True)


@jax.custom_vjp
def _mean_by_row(x: Float[Array, "*rows E"]) -> Float[Array, "*rows 1"]:
    """XLA on CPU adds up a row in an order that depends on how many rows there are."""

    def product(x: Float[Array, "*rows E"]) -> Float[Array, "*rows 1"]:
        E = x.shape[-1]
        return matmul(x.reshape(-1, E), jnp.full((E, 1), 1 / E)).reshape(*x.shape[:-1], 1)

    return jax.lax.platform_dependent(x, cpu=product, default=_mean)


def _mean_forward(
    x: Float[Array, "*rows E"],
) -> tuple[Float[Array, "*rows 1"], Float[Array, "*rows E"]]:
    return _mean_by_row(x), x


def _mean_backward(
    x: Float[Array, "*rows E"], gradient: Float[Array, "*rows 1"]
) -> tuple[Float[Array, "*rows E"]]:
    return (jnp.broadcast_to(gradient / x.shape[-1], x.shape),)


_mean_by_row.defvjp(_mean_forward, _mean_backward)


def _product_by_row(
    x: Float[Array, "N I"], kernel: Float[Array, "I O"], *_: Any, **__: Any
) -> Float[Array, "N O"]:
    """What `nnx.Linear` asks of a `dot_general`: activations are flat, so the axes are known."""
    return matmul(x, kernel)
