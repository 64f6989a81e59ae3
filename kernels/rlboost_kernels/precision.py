"""The precision of products: accelerators round float32 factors unless asked not to."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def product_precision(dtype: Any) -> lax.Precision | None:
    """Return the `precision` argument with which factors of this type are not rounded.

    A GPU's tensor cores would take float32 factors with 10 of their 23 bits (TF32), and a TPU's
    with 7. Factors of 16 bits are exact there as they are, and keep the default.
    """
    return lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None
