"""A matrix with a low-rank adapter: W + (alpha / rank) · A · B. Only A and B are trained.

Both, learner and engine, multiply by the merged matrix, added up in float32 and rounded to the
dtype of activations once: what is trained is the policy that sampled, rounding and all. In the
learner the merged matrix lives as long as its product; gradients go by way of the factors and
never have the matrix's shape.

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; A starts uniform and B at 0, as in the PEFT
library.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from rlboost_kernels import matmul, product_precision

from rlboost_jax.models import products
from rlboost_jax.models.products import float32_product, normal
from rlboost_jax.settings.model_config import ModelConfig

Kept = tuple[Array, Array, Array, Array]


def linear(
    config: ModelConfig,
    target: str,
    size_in: int,
    size_out: int,
    *,
    rngs: nnx.Rngs,
    by_row: bool,
    bias: bool = False,
    split_inputs: bool = False,
    split_rows: bool = False,
) -> nnx.Module:
    """`products.linear`, with an adapter if the configuration has one for matrices of this name."""
    if not config.adapts(target):
        return products.linear(
            config,
            size_in,
            size_out,
            rngs=rngs,
            by_row=by_row,
            bias=bias,
            split_inputs=split_inputs,
            split_rows=split_rows,
        )
    return LoraLinear(config, size_in, size_out, rngs=rngs, by_row=by_row, bias=bias)


class LoraLinear(nnx.Module):
    """Product with an adapted matrix stored [in, out]; the leaves of `nnx.Linear` and two more."""

    def __init__(
        self,
        config: ModelConfig,
        size_in: int,
        size_out: int,
        *,
        rngs: nnx.Rngs,
        by_row: bool,
        bias: bool,
    ) -> None:
        rank, std = config.lora.rank, size_in**-0.5
        self.kernel = normal((size_in, size_out), std, rngs)
        self.bias = nnx.Param(jnp.zeros(size_out), start=0.0) if bias else None
        self.lora_a = nnx.Param(jnp.zeros((size_in, rank)), bound=std)
        self.lora_b = nnx.Param(jnp.zeros((rank, size_out)), start=0.0)
        self.scale, self.dtype, self.by_row = config.lora.scale, config.dtype, by_row

    def __call__(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        factors = self.kernel[...], self.lora_a[...], self.lora_b[...]
        y = adapted_product(x.astype(self.dtype), *factors, self.scale, self.by_row)
        return y if self.bias is None else y + self.bias[...].astype(self.dtype)[None, :]


def merged(
    kernel: Float[Array, "I O"],
    a: Float[Array, "I R"],
    b: Float[Array, "R O"],
    *,
    scale: float,
    dtype: Any,
    by_row: bool,
) -> Float[Array, "I O"]:
    """Matrix with its adapter merged, which products use.

    Args:
        scale: `config.lora.scale`.
        dtype: of activations. The factors are rounded to it, as all that is trained is where it
            is used.
        by_row: whether A · B is in the engine's order of sums, see `products.py`.
    """
    delta = float32_product(a.astype(dtype), b, by_row=by_row)
    return (kernel.astype(jnp.float32) + scale * delta).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def adapted_product(
    x: Float[Array, "N I"],
    kernel: Float[Array, "I O"],
    a: Float[Array, "I R"],
    b: Float[Array, "R O"],
    scale: float,
    by_row: bool,
) -> Float[Array, "N O"]:
    """Multiply rows by the merged matrix; gradients go to `x`, `a` and `b`, none to `kernel`.

    For G, the gradient of the product: scale · xᵀ (G Bᵀ) to A and scale · (x A)ᵀ G to B. The usual
    way, by the gradient of the matrix, comes to the same, and costs half as much again as the
    products of a frozen matrix do.
    """
    matrix = merged(kernel, a, b, scale=scale, dtype=x.dtype, by_row=by_row)
    if by_row:
        return matmul(x, matrix)
    return jnp.matmul(x, matrix, precision=product_precision(x.dtype))


def _forward(
    x: Array, kernel: Array, a: Array, b: Array, scale: float, by_row: bool
) -> tuple[Array, Kept]:
    return adapted_product(x, kernel, a, b, scale, by_row), (x, kernel, a, b)


def _backward(
    scale: float, by_row: bool, kept: Kept, gradient: Float[Array, "N O"]
) -> tuple[Array, None, Array, Array]:
    x, kernel, a, b = kept
    matrix = merged(kernel, a, b, scale=scale, dtype=x.dtype, by_row=by_row)
    precision = product_precision(x.dtype)
    wide = partial(jnp.matmul, precision=precision, preferred_element_type=jnp.float32)
    left, right = a.astype(x.dtype), b.astype(x.dtype)
    to_x = wide(gradient, matrix.T).astype(x.dtype)
    to_a = scale * wide(x.T, wide(gradient, right.T).astype(x.dtype))
    to_b = scale * wide(wide(x, left).astype(x.dtype).T, gradient)
    return to_x, None, to_a.astype(a.dtype), to_b.astype(b.dtype)


adapted_product.defvjp(_forward, _backward)
