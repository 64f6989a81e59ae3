"""Numbers of a GGUF tensor, made of its blocks as they are asked for. No JAX here.

Rows are blocks of 32 or 256 numbers with scales of their own. What the blocks mean is the package
gguf's knowledge; here a range of rows is cut out of the mapped file and made float32.
"""

from typing import Any, Final

import numpy as np

from rlboost_jax.platform.mistakes import ConfigError, install
from rlboost_jax.settings.gguf.container import BlockTensor, GgufUnusable

_AT_ONCE: Final = 2**18  # numbers: what is made of them on the way stays in a core's cache


class Blocks:
    """A stored tensor that gives float32 for slices along its axes."""

    def __init__(self, tensor: BlockTensor) -> None:
        """Map the tensor's bytes.

        Raises:
            GgufUnusable: a type that is not known, a row that is no whole number of blocks, or a
                file that ends before the tensor does.
            ConfigError: the package gguf is not installed.
        """
        self.shape = tensor.shape
        self._kind, block, block_bytes = _kind(tensor)
        *rows, width = tensor.shape
        if width % block:
            raise GgufUnusable(
                f"{tensor.path} has a tensor with rows of {width:,} numbers of type "
                f"{self._kind.name}, whose blocks have {block}"
            )
        row_bytes = width // block * block_bytes
        num_bytes = int(np.prod(rows, dtype=object)) * row_bytes
        size = tensor.path.stat().st_size
        if tensor.offset + num_bytes > size:
            raise GgufUnusable(
                f"{tensor.path} has {size:,} bytes, and a tensor of {list(tensor.shape)} numbers "
                f"ends at byte {tensor.offset + num_bytes:,}; fetch it again"
            )
        self._bytes = np.memmap(
            tensor.path, np.uint8, "r", offset=tensor.offset, shape=(*rows, row_bytes)
        )

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read numbers by a tuple of slices, one slice, or rows and a slice of columns."""
        from gguf.quants import dequantize

        *outer, columns = (*_tuple(index), *[slice(None)] * len(self.shape))[: len(self.shape)]
        stored = self._bytes[tuple(outer)]
        flat = stored.reshape(-1, stored.shape[-1])
        width = len(range(*columns.indices(self.shape[-1])))
        out = np.empty((len(flat), width), np.float32)
        step = max(1, _AT_ONCE // self.shape[-1])
        for start in range(0, len(flat), step):
            part = np.ascontiguousarray(flat[start : start + step])
            out[start : start + step] = dequantize(part, self._kind)[:, columns]
        return out.reshape(*stored.shape[:-1], width)


def _tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _kind(tensor: BlockTensor) -> tuple[Any, int, int]:
    """Return the type as the package gguf has it, the numbers in a block, and its bytes."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise ConfigError(f"{tensor.path} needs the package gguf; {install('gguf')}") from None
    try:
        kind = GGMLQuantizationType(tensor.kind)
        numbers, num_bytes = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, num_bytes), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        raise GgufUnusable(
            f"{tensor.path} has a tensor of ggml's type {tensor.kind}, which the package gguf does "
            "not turn into numbers; take the model in other blocks, such as Q8_0 or Q4_K"
        ) from None
    return kind, numbers, num_bytes
