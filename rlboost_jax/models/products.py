"""Products with matrices and sums over a row, in the two forms that the modules know.

They are XLA's own or, `by_row`, those of `rlboost_kernels.matmul`, which give a row the same
bits in any company and number: what the engine needs, and a learner that wants to agree with it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from rlboost_kernels import matmul, product_precision

from rlboost_jax.models.tensor_parallel import added_up
from rlboost_jax.settings.model_config import ModelConfig

# As it is stored or, in an engine on CPU, in panels (`engine/weight_panels.py`).
Matrix = Float[Array, "I O"] | Float[Array, "_ I 32"] | Float[Array, "_ _ 64"]


def normal(shape: tuple[int, ...], std: float, rngs: nnx.Rngs) -> nnx.Param:
    """Parameter that starts random; `params.py` draws it anew from its `std`."""
    return nnx.Param(std * jax.random.normal(rngs.params(), shape), std=std)


def linear(
    config: ModelConfig,
    size_in: int,
    size_out: int,
    *,
    rngs: nnx.Rngs,
    by_row: bool,
    bias: bool = False,
    split_inputs: bool = False,
    split_rows: bool = False,
) -> nnx.Linear:
    """Linear layer with a matrix stored [in, out] and, optionally, a bias that starts at 0.

    Args:
        split_inputs: of rows and matrix each device has some inputs, see `tensor_parallel.py`.
        split_rows: each device has some rows. What all have of the matrix's gradient is then added
            up before it is rounded.
    """
    std = size_in**-0.5
    options: dict[str, Any] = {}
    product: Callable[..., Array] = jax.lax.dot_general
    if by_row:
        product = _product_of_parts if split_inputs else _product_by_row
    elif split_rows and jnp.dtype(config.dtype) != jnp.float32:
        product, options = _product_of_some_rows, {"promote_dtype": _matrix_as_it_is}
    return nnx.Linear(
        size_in,
        size_out,
        use_bias=bias,
        dtype=jnp.dtype(config.dtype),
        precision=product_precision(config.dtype),
        dot_general=product,
        **options,
        kernel_init=nnx.initializers.normal(std),
        kernel_metadata={"std": std},
        bias_metadata={"start": 0.0},
        rngs=rngs,
    )


def _matrix_as_it_is(arrays: tuple[Any, ...], *, dtype: Any, **_: Any) -> tuple[Any, ...]:
    """Promote rows and bias as `nnx.Linear` does, but leave the matrix as it is."""
    x, kernel, bias = arrays
    return x.astype(dtype), kernel, None if bias is None else bias.astype(dtype)


def _product_of_some_rows(
    x: Float[Array, "N I"], kernel: Float[Array, "I O"], *_: Any, **__: Any
) -> Float[Array, "N O"]:
    return _cast_product(x, kernel)


@jax.custom_vjp
def _cast_product(x: Float[Array, "N I"], kernel: Float[Array, "I O"]) -> Float[Array, "N O"]:
    """Multiply rows by a float32 matrix in their own dtype; its gradient stays float32.

    Cast before, the matrix would have a gradient in the dtype of rows, and so would the parts of
    it that the devices of a mesh add up.
    """
    return _cast_forward(x, kernel)[0]


def _cast_forward(
    x: Float[Array, "N I"], kernel: Float[Array, "I O"]
) -> tuple[Float[Array, "N O"], tuple[Array, Array]]:
    matrix = kernel.astype(x.dtype)  # one for both passes: it is gathered once
    return x @ matrix, (x, matrix)


def _cast_backward(
    kept: tuple[Array, Array], gradient: Float[Array, "N O"]
) -> tuple[Float[Array, "N I"], Float[Array, "I O"]]:
    x, matrix = kept
    # Not by its transpose, which would be gathered by itself.
    by_x = jax.lax.dot_general(gradient, matrix, (((1,), (1,)), ((), ())))
    over = (((0,), (0,)), ((), ()))
    return by_x, jax.lax.dot_general(x, gradient, over, preferred_element_type=jnp.float32)


_cast_product.defvjp(_cast_forward, _cast_backward)


def float32_product(
    x: Float[Array, "N I"],
    kernel: Matrix | Float[Array, "O I"],
    *,
    by_row: bool,
    transposed: bool = False,
) -> Float[Array, "N O"]:
    """Multiply rows by a matrix, or by its transpose, after a cast to the dtype of the rows."""
    kernel = kernel.astype(x.dtype)
    if by_row:
        return matmul(x, kernel, transposed=transposed, out_dtype=jnp.float32)
    precision = product_precision(x.dtype)
    kernel = kernel.T if transposed else kernel
    return jnp.matmul(x, kernel, precision=precision, preferred_element_type=jnp.float32)


def row_mean(x: Float[Array, "*rows E"], *, by_row: bool) -> Float[Array, "*rows 1"]:
    """Mean of every row."""
    return _mean_by_row(x) if by_row else _mean(x)


def _mean(x: Float[Array, "*rows E"]) -> Float[Array, "*rows 1"]:
    return jnp.mean(x, axis=-1, keepdims=True)


@jax.custom_vjp
def _mean_by_row(x: Float[Array, "*rows E"]) -> Float[Array, "*rows 1"]:
    """Mean of every row, by row.

    XLA on CPU sums a row in an order that depends on how many rows there are.
    """

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
    x: Float[Array, "N I"], kernel: Matrix, *_: Any, **__: Any
) -> Float[Array, "N O"]:
    """`dot_general` for `nnx.Linear` by row: activations are flat, so the axes are known."""
    return matmul(x, kernel)


def _product_of_parts(
    x: Float[Array, "N I"], kernel: Float[Array, "I O"], *_: Any, **__: Any
) -> Float[Array, "N O"]:
    """Product of a matrix split by its inputs, summed over devices and rounded once."""
    return added_up(matmul(x, kernel, out_dtype=jnp.float32)).astype(x.dtype)
