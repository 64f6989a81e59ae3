"""Time of rows times a matrix, by implementation."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rlboost_kernels.implementations import available_implementations
from rlboost_kernels.matmul.matmul_api import matmul
from rlboost_kernels.matmul.panels import pack_panels

SHAPES = ((640, 1920, "float32"), (640, 1920, "bfloat16"))  # K, N
ROWS = (1, 8, 16, 64, 1024)  # M
_MATRICES_BYTES = 80e6  # gone round in a turn, so that they come from memory

_COLUMNS = "{:28} {:>6} {:>16} {:>9} {:>9} {:>8}"


def matmul_rows(
    median_seconds: Callable[[Mapping[str, Callable[[], object]], int], dict[str, float]],
    rounds: int,
) -> list[str]:
    """Make a heading, and a line for each shape, number of rows and implementation; "cpu" twice.

    Args:
        median_seconds: of calls that take turns, as in `rlboost_kernels.bench`.
    """
    lines = [_COLUMNS.format("product, K N type", "rows", "implementation", "each", "rate", "xla")]
    names = [name for name in available_implementations() if name != "reference"]
    for K, N, dtype in SHAPES:
        for M in ROWS:
            count = 2 if M > 64 else int(_MATRICES_BYTES // (K * N * jnp.dtype(dtype).itemsize))
            rng = np.random.default_rng(0)
            x = jnp.asarray(rng.standard_normal((M, K)), dtype)
            w = [jnp.asarray(rng.standard_normal((K, N)), dtype) for _ in range(count)]
            calls = {name: partial(_all(name), x, w) for name in names}
            if "cpu" in names:
                calls["cpu, panels"] = partial(_all("cpu"), x, [pack_panels(each) for each in w])
            seconds = median_seconds(calls, rounds)
            for name in calls:
                each = seconds[name] / count
                lines.append(
                    _COLUMNS.format(
                        f"{K} {N} {dtype}",
                        M,
                        name,
                        f"{each * 1e6:.0f} µs",
                        f"{2e-9 * M * K * N / each:.0f} GF/s",
                        f"{seconds['xla'] / seconds[name]:.2f} x",
                    )
                )
    return lines


def _all(name: str) -> Callable[[jax.Array, list[jax.Array]], list[jax.Array]]:
    return jax.jit(lambda x, matrices: [matmul(x, w, implementation=name) for w in matrices])
