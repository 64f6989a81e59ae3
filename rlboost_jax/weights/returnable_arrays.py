"""Arrays whose memory goes back to the system part by part, before the array is gone."""

import contextlib
import math
import mmap
from typing import Any

import numpy as np


def returnable(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in pages of its own, none of which is taken before bytes come."""
    num_bytes = max(1, math.prod(shape) * dtype.itemsize)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, buffer=pages)


def give_back(part: np.ndarray) -> None:
    """Give back the pages that lie wholly in a part of a returnable array: it reads as zeros.

    Args:
        part: its bytes follow each other.
    """
    pages: Any = part
    while isinstance(pages, np.ndarray):
        pages = pages.base
    begin = part.ctypes.data - np.frombuffer(pages, np.uint8).ctypes.data
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)
