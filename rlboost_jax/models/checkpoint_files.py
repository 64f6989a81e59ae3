"""Parameters from the safetensors files of a Hugging Face checkpoint, and into such files.

Reading goes leaf by leaf: a device is given its own slice of a leaf, which is put together from
the slices of the tensors in it, in one dtype. The files are mapped, not loaded, so that the host
holds what one leaf has on its devices, and no device holds anything twice.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import jax
import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import safetensors
from safetensors.numpy import save_file

from rlboost_jax.config.errors import Mistake
from rlboost_jax.config.records import ModelConfig
from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.models.tensor_names import HEAD, PREFIX, Stored, stored

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MOST_FILE_BYTES: Final = 5 * 10**9  # as transformers cuts them
_TYPES: Final = ("F32", "F16", "BF16")
_PREFIXES: Final = (PREFIX, "language_model.model.", "model.language_model.", "")
_UNUSED: Final = (
    "rotary_emb.inv_freq",
)  # ends of names that older files have; rope.py knows better


class CheckpointUnusable(Mistake, ValueError):
    """A file or tensor of a checkpoint is missing, surplus, broken or of another shape."""


def read_checkpoint(
    model: ModelConfig,
    folder: str | Path,
    *,
    shardings: Params | None = None,
    dtype: str = "float32",
) -> Params:
    """The parameters of a checkpoint.

    Args:
        model: its architecture, as `config/huggingface.py` reads it from the folder's config.json.
        shardings: where each leaf goes; None puts all on the default device.
        dtype: that they are converted to.

    Raises:
        CheckpointUnusable: it does not hold just the tensors of the model; names the first.
    """
    leaves = flatten_params(abstract_params(model))
    if shardings is None:
        default = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        places = dict.fromkeys(leaves, default)
    else:
        places = flatten_params(shardings)
    with _Tensors(Path(folder)) as tensors:
        prefix = tensors.prefix()
        plan = {name: stored(model, name, leaf.shape, prefix) for name, leaf in leaves.items()}
        _check(tensors, model, {n: (plan[n], leaf.shape) for n, leaf in leaves.items()}, prefix)
        return unflatten_params(
            {
                name: _read_leaf(tensors, plan[name], leaf.shape, places[name], np.dtype(dtype))
                for name, leaf in leaves.items()
            }
        )


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
    pieces: list[_Piece] = []
    for leaf, array in flatten_params(params).items():
        how = stored(model, leaf, array.shape)
        pieces += [_Piece(n, array, index, how.transposed) for index, n in how.tensors.items()]
    files: list[list[_Piece]] = [[]]
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
class _Piece:
    """A tensor to be written: an entry of a leaf's stacked axes."""

    name: str
    leaf: Any
    index: tuple[int, ...]
    transposed: bool

    @property
    def size(self) -> int:
        return math.prod(self.leaf.shape[len(self.index) :])

    def tensor(self, dtype: str) -> np.ndarray:
        array = np.asarray(self.leaf)[self.index].astype(dtype)
        return np.ascontiguousarray(array.T if self.transposed else array)


class _Tensors:
    """The tensors of a folder by name, whichever files they are in."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointUnusable if files are missing or broken."""
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self._open: dict[str, Any] = {}
        try:
            self.files = self._find()
            for name, file in self.files.items():
                if name not in self._keys(file):
                    raise CheckpointUnusable(
                        f"{folder / INDEX} places tensor {name} in {file}, which does not have it"
                    )
        except BaseException:  # whatever it was, it goes on upwards
            self._stack.close()
            raise

    def __enter__(self) -> "_Tensors":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def prefix(self) -> str:
        """What all names but the head's begin with: text models inside of others have their own."""
        for prefix in _PREFIXES:
            if f"{prefix}embed_tokens.weight" in self.files:
                return prefix
        return PREFIX  # the first tensor that is missed will say so

    def path(self, name: str) -> Path:
        return self.folder / self.files[name]

    def slice_of(self, name: str) -> Any:
        """The tensor as safetensors gives it: it has a shape and a type, and can be cut."""
        return self._handle(self.files[name]).get_slice(name)

    def _find(self) -> dict[str, str]:
        index, single = self.folder / INDEX, self.folder / SINGLE
        if not index.is_file():
            if not single.is_file():
                raise CheckpointUnusable(
                    f"{self.folder} has neither {SINGLE} nor {INDEX}; weights in other formats "
                    "must be converted: load them in transformers and save_pretrained"
                )
            return dict.fromkeys(self._keys(SINGLE), SINGLE)
        try:
            weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
            files = dict.fromkeys(weight_map.values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointUnusable(f"{index} is no index of tensors: {error!r}") from None
        for file in files:
            if not (self.folder / file).is_file():
                first = next(name for name, where in weight_map.items() if where == file)
                raise CheckpointUnusable(
                    f"{self.folder / file} is missing, which has tensor {first} and "
                    f"{sum(where == file for where in weight_map.values()) - 1} others; fetch it"
                )
        return weight_map

    def _keys(self, file: str) -> frozenset[str]:
        return frozenset(self._handle(file).keys())

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            path = self.folder / file
            try:
                handle = safetensors.safe_open(str(path), framework="numpy")
            except (safetensors.SafetensorError, OSError) as error:
                raise CheckpointUnusable(
                    f"{path} cannot be read: {error}; fetch it again"
                ) from None
            self._open[file] = self._stack.enter_context(handle)
        return self._open[file]


def _check(
    tensors: _Tensors,
    model: ModelConfig,
    plan: Mapping[str, tuple[Stored, tuple[int, ...]]],
    prefix: str,
) -> None:
    """Raise CheckpointUnusable unless there is each tensor of the model, and no other."""
    wanted = set()
    for leaf, ((names, transposed), shape) in plan.items():
        for index, name in names.items():
            wanted.add(name)
            expected = shape[len(index) :][:: -1 if transposed else 1]
            if name not in tensors.files:
                raise CheckpointUnusable(
                    f"{tensors.folder} has no tensor {name} of shape {list(expected)}, which "
                    f"becomes {leaf}; is it whole, and does config.json speak of it?"
                )
            found = tensors.slice_of(name)
            if tuple(found.get_shape()) != expected:
                raise CheckpointUnusable(
                    f"tensor {name} in {tensors.path(name)} has shape {found.get_shape()}, and "
                    f"config.json makes it {list(expected)}"
                )
            if found.get_dtype() not in _TYPES:
                raise CheckpointUnusable(
                    f"tensor {name} in {tensors.path(name)} has type {found.get_dtype()}; known: "
                    f"{', '.join(_TYPES)}"
                )
    for name in sorted(tensors.files.keys() - wanted):
        of_another = prefix not in (PREFIX, "") and not name.startswith(prefix)  # such as vision
        copy_of_table = name == HEAD and model.tie_embeddings
        if not (of_another or copy_of_table or name.endswith(_UNUSED)):
            raise CheckpointUnusable(
                f"tensor {name} in {tensors.path(name)} has no place in a {model.family} as "
                "config.json describes it"
            )


def _read_leaf(
    tensors: _Tensors,
    how: Stored,
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    dtype: np.dtype,
) -> jax.Array:
    stacked = len(next(iter(how.tensors)))

    def read(index: tuple[slice, ...] | None) -> np.ndarray:
        cuts = [slice(*cut.indices(n)) for cut, n in zip(index or (), shape, strict=True)]
        out = np.empty([cut.stop - cut.start for cut in cuts], dtype)
        inner = tuple(cuts[stacked:])
        for place in np.ndindex(*out.shape[:stacked]):
            at = tuple(i + cut.start for i, cut in zip(place, cuts, strict=False))
            tensor = tensors.slice_of(how.tensors[at])
            out[place] = tensor[inner[::-1]].T if how.transposed else tensor[inner]
        return out

    leaf = jax.make_array_from_callback(shape, sharding, read)
    return jax.block_until_ready(leaf)  # the host's copy goes before the next leaf is read


def _natural(name: str) -> list[tuple[int, str]]:
    """Layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
