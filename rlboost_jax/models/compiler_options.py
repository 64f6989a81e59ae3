"""XLA options for every program whose bits count.

For a GPU it times several kernels for each product and takes the fastest of that moment
("autotuning"), so that two processes on one device may give a product different bits; and it adds
up what is scattered to one place in any order. `xla_gpu_deterministic_ops` ends both. What it costs
is in NOTES.md beside this file.
"""

from typing import Any, Final

import jax

FOR_GPU: Final[dict[str, Any]] = {"xla_gpu_deterministic_ops": True}


def same_bits(device: jax.Device) -> dict[str, Any] | None:
    """`compiler_options` of `jax.jit` with which every process compiles the same program."""
    return None if device.platform == "cpu" else FOR_GPU
