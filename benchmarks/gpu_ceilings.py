"""Stage of gpu.py: what this device reaches at most, in one compiled loop that is awaited once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet
from rlboost_jax.models.compiler_options import same_bits

_TIMES = 20  # in one program


def ceilings(*, tiny: bool) -> Cases:
    """A copy, and a square product in bfloat16 with the bits of all processes or of one."""
    return {
        "copy of 4 GiB": partial(copy, 2**20 if tiny else 2**32),
        "product of 8,192³, deterministic": partial(product, 128 if tiny else 8192, exact=True),
        "product of 8,192³, timed by XLA": partial(product, 128 if tiny else 8192, exact=False),
    }


def copy(num_bytes: int) -> Figure:
    """Each iteration reads an array and writes one."""

    @jax.jit
    def chain(x: Any) -> Any:
        return jax.lax.fori_loop(0, _TIMES, lambda i, x: x + i.astype(x.dtype), x)

    array = jnp.ones(num_bytes // 4, jnp.float32)
    seconds = seconds_of(partial(chain, array)) / _TIMES
    here = sheet()
    bound = here.memory_bytes_per_second / 1e12 if here else None
    return figure(2 * array.nbytes / seconds / 1e12, "TB/s", bound=bound)


def product(size: int, *, exact: bool) -> Figure:
    """Each iteration multiplies what the last one gave, which keeps its scale."""
    options = same_bits(jax.devices()[0]) if exact else None

    @partial(jax.jit, compiler_options=options)
    def chain(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, _TIMES, lambda _, x: x @ w, x)

    x, w = (
        jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) for seed in range(2)
    )
    seconds = seconds_of(partial(chain, x, w * size**-0.5)) / _TIMES
    here = sheet()
    bound = here.flops_per_second / 1e12 if here else None
    return figure(2 * size**3 / seconds / 1e12, "TFLOP/s", bound=bound)
