"""Writing of parameters to the safetensors files of a Hugging Face checkpoint."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
from safetensors.numpy import save_file

from rlboost_jax.models.params import Params, flatten_params
from rlboost_jax.models.tensor_names import stored
from rlboost_jax.settings.huggingface.tensor_files import INDEX, SINGLE
from rlboost_jax.settings.model_config import ModelConfig

MOST_FILE_BYTES: Final = 5 * 10**9  # as transformers cuts them


def write_checkpoint(
    model: ModelConfig,
    params: Params,
    folder: str | Path,
    *,
    dtype: str,
    most_file_bytes: int = MOST_FILE_BYTES,
) -> tuple[Path, ...]:
    """Write the parameters as safetensors; returns the files, of at most so many bytes each.

    The host holds one file's tensors at a time besides the parameters. What cannot be written
    leaves no file that could be taken for whole: the index comes last.

    Args:
        params: arrays of any kind, layers stacked.
        dtype: of the tensors: "float32", "bfloat16" or "float16".
    """
    folder, item_bytes = Path(folder), np.dtype(dtype).itemsize
    pieces: list[_TensorPiece] = []
    for leaf, array in flatten_params(params).items():
        how = stored(model, leaf, array.shape)
        pieces += [
            _TensorPiece(n, array, index, how.transposed) for index, n in how.tensors.items()
        ]
    files: list[list[_TensorPiece]] = [[]]
    held = 0
    for piece in sorted(pieces, key=lambda piece: _natural(piece.name)):
        num_bytes = item_bytes * piece.size
        if held and held + num_bytes > most_file_bytes:
            files.append([])
            held = 0
        files[-1].append(piece)
        held += num_bytes
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    if len(files) == 1:
        names = [SINGLE]
    for name, content in zip(names, files, strict=True):
        save_file(
            {piece.name: piece.tensor(dtype) for piece in content},
            folder / name,
            metadata={"format": "pt"},
        )
    if len(files) > 1:
        placed = [(n, p) for n, part in zip(names, files, strict=True) for p in part]
        values = {
            "metadata": {"total_size": item_bytes * sum(piece.size for piece in pieces)},
            "weight_map": {piece.name: name for name, piece in placed},
        }
        (folder / INDEX).write_text(json.dumps(values, indent=2) + "\n")
    return tuple(folder / name for name in names)


@dataclass(frozen=True)
class _TensorPiece:
    """A tensor to be written: an entry of a leaf's stacked axes."""

    name: str
    leaf: Any
    index: tuple[int, ...]
    transposed: bool

    @property
    def size(self) -> int:
        return math.prod(self.leaf.shape[len(self.index) :])

    def tensor(self, dtype: str) -> np.ndarray:
        array = np.asarray(self.leaf[self.index]).astype(dtype)  # from a device no more than this
        return np.ascontiguousarray(array.T if self.transposed else array)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
