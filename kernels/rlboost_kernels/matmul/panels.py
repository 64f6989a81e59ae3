"""Matrices in the order in which the CPU's product reads them, put so once for many products.

A panel is 32 neighbouring columns, one row after another: [K, 32]. A product takes a panel at a
time, so that it reads memory from end to end. A matrix that lies in rows has to be copied into
panels for each product of more than a few rows, which took up to a quarter of a decode step.
"""

import jax.numpy as jnp
from jax import Array

PANEL = 32  # columns; kPanel in cpu/src/matmul.h


def fits_panels(columns: int) -> bool:
    """Whether a matrix of so many columns can be packed."""
    return columns > 0 and columns % PANEL == 0


def pack_panels(w: Array, *, transposed: bool = False) -> Array:  # [N / 32, K, 32]
    """The matrix [K, N], or [N, K] if `transposed`, as `matmul` also takes it.

    Raises:
        ValueError: w has not two axes, or N is no multiple of 32.
    """
    if w.ndim != 2:
        raise ValueError(f"w has shape {w.shape}; it must have two axes")
    columns = w.shape[0 if transposed else 1]
    if not fits_panels(columns):
        raise ValueError(f"w has {columns} columns; panels are of {PANEL}, and none is in part")
    if transposed:
        return w.reshape(columns // PANEL, PANEL, -1).swapaxes(1, 2)
    return w.reshape(-1, columns // PANEL, PANEL).swapaxes(0, 1)


def unpack_panels(panels: Array) -> Array:  # [K, N]
    """The matrix of which these are the panels."""
    count, K, width = panels.shape
    return jnp.swapaxes(panels, 0, 1).reshape(K, count * width)
