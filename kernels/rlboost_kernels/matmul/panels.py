"""Matrices in the order in which the CPU's product reads them, put so once for many products.

A panel is 32 neighbouring columns, one row after another: [K, 32]. A product takes a panel at a
time, so that it reads memory from end to end. A matrix that lies in rows has to be copied into
panels for each product of more than a few rows, which took up to a quarter of a decode step.

Where the processor multiplies bfloat16 two entries at a time, a panel has two rows side by side:
[K / 2, 64], each entry behind that of the next row, which is the order of the processor's halves.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from rlboost_kernels.cpu import library

PANEL = 32  # columns; kPanel in cpu/src/matmul.h


def fits_panels(columns: int) -> bool:
    """Whether a matrix of so many columns can be packed."""
    return columns > 0 and columns % PANEL == 0


def pack_panels(w: Array, *, transposed: bool = False, dtype: Any = None) -> Array:
    """Pack a matrix [K, N], or [N, K] if `transposed`, for `matmul`.

    Args:
        dtype: of the products that it is for, if they are not in its own: it may be cast later.

    Returns:
        Panels [N / 32, K, 32], or in pairs [N / 32, K / 2, 64], of the type of w.

    Raises:
        ValueError: w has not two axes, or N is no multiple of 32.
    """
    if w.ndim != 2:
        raise ValueError(f"w has shape {w.shape}; it must have two axes")
    columns, K = w.shape if transposed else w.shape[::-1]
    if not fits_panels(columns):
        raise ValueError(f"w has {columns} columns; panels are of {PANEL}, and none is in part")
    pairs = jnp.dtype(w.dtype if dtype is None else dtype) == "bfloat16" and K % 2 == 0
    return packed(w.T if transposed else w, in_pairs=pairs and library.multiplies_pairs())


def packed(w: Array, *, in_pairs: bool) -> Array:
    """Pack a matrix [K, N] that has whole panels."""
    K, count = w.shape[0], w.shape[1] // PANEL
    if not in_pairs:
        return w.reshape(K, count, PANEL).swapaxes(0, 1)
    pairs = w.reshape(K // 2, 2, count, PANEL)[:, ::-1].transpose(2, 0, 3, 1)
    return pairs.reshape(count, K // 2, 2 * PANEL)


def are_pairs(w: Array) -> bool:
    """Whether these are panels that have two rows side by side."""
    return w.ndim == 3 and w.shape[2] == 2 * PANEL


def unpack_panels(panels: Array) -> Array:  # [K, N]
    """Restore the matrix that was packed into these panels."""
    count, rows, width = panels.shape
    if not are_pairs(panels):
        return panels.swapaxes(0, 1).reshape(rows, count * width)
    pairs = panels.reshape(count, rows, PANEL, 2)[..., ::-1]
    return pairs.transpose(1, 3, 0, 2).reshape(2 * rows, count * PANEL)
