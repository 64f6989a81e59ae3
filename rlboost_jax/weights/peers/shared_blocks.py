"""Arrays in memory that the process which serves them maps, too.

A block has no name and lies in no folder, so nobody else finds it, and nothing is left of it once
the processes that map it have ended. Its descriptor goes over a socket between the two. Only the
process that made a block can write to it: the kernel gives others no writable mapping (Linux 5.1).
"""

import contextlib
import fcntl
import itertools
import math
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

_FILES: Final = 250  # that one message carries; Linux takes 253
_F_SEAL_FUTURE_WRITE: Final = 0x10  # linux/fcntl.h
_numbers: Final = itertools.count(1)


def has_shared_blocks() -> bool:
    """Whether this system has memory without a name: Linux."""
    return hasattr(os, "memfd_create")


class SharedBlock(mmap.mmap):
    """Memory that stays until its last array and its last mapping elsewhere are gone.

    Attributes:
        number: names it in this process.
        file: its descriptor.
    """

    number: int
    file: int

    @classmethod
    def of(cls, num_bytes: int) -> "SharedBlock":
        """Make a block. Raises OSError."""
        file = os.memfd_create("rlboost-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, max(1, num_bytes))
            block = cls(file, max(1, num_bytes))
            with contextlib.suppress(OSError):  # an older kernel
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | _F_SEAL_FUTURE_WRITE)
        except BaseException:
            os.close(file)
            raise
        block.number, block.file = next(_numbers), file
        weakref.finalize(block, os.close, file)
        return block


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in a block of its own, which it keeps. Raises OSError."""
    block = SharedBlock.of(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, buffer=block)


def block_of(array: np.ndarray) -> SharedBlock:
    """The block in which an array, or a part of one, lies."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, SharedBlock)
    return base


def send_blocks(line: socket.socket, blocks: Sequence[SharedBlock]) -> None:
    """Send descriptors of blocks. Raises OSError, such as where nobody reads them any more."""
    for begin in range(0, len(blocks), _FILES):
        some = blocks[begin : begin + _FILES]
        numbers = struct.pack(f"<{len(some)}Q", *(block.number for block in some))
        socket.send_fds(line, [numbers], [block.file for block in some])


def receive_blocks(line: socket.socket, numbers: Collection[int]) -> dict[int, mmap.mmap]:
    """Map blocks that have been sent, by number; what a process before has not read is dropped.

    Raises:
        OSError: they are not all there, or cannot be mapped.
    """
    found: dict[int, mmap.mmap] = {}
    while not all(number in found for number in numbers):
        data, files, _, _ = socket.recv_fds(line, 8 * _FILES, _FILES)
        if not data:
            raise ConnectionResetError("the server is gone")
        try:
            for (number,), file in zip(struct.iter_unpack("<Q", data), files, strict=False):
                if number in numbers:
                    found[number] = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        finally:
            for file in files:
                os.close(file)
    return found
