"""Parameters from the safetensors files of a Hugging Face checkpoint.

Reading goes leaf by leaf: a device is given its own slice of a leaf, which is put together from
the slices of the tensors in it, in one dtype. The files are mapped, not loaded, so that the host
holds what one leaf has on its devices, and no device holds anything twice.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import safetensors

from rlboost_jax.closing import Closing
from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.models.tensor_names import HEAD, INDEX, PREFIX, SINGLE, Stored, stored
from rlboost_jax.settings.errors import Mistake
from rlboost_jax.settings.model import ModelConfig

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
        model: its architecture, as `settings/huggingface/config.py` reads it from config.json.
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


def weights_digest(folder: str | Path) -> str:
    """SHA-256 over name, type, shape and first row of every tensor, by name.

    Equal for the same checkpoint in other files, and cheap: training changes every row.

    Raises:
        CheckpointUnusable: files are missing or broken.
    """
    digest = hashlib.sha256()
    with _Tensors(Path(folder)) as tensors:
        for name in sorted(tensors.files):
            tensor = tensors.slice_of(name)
            shape, kind = tensor.get_shape(), tensor.get_dtype()
            digest.update(f"{name} {kind} {shape}\n".encode())
            if shape and kind in _TYPES:
                digest.update(tensor[:1].tobytes())
    return digest.hexdigest()


class _Tensors(Closing):
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
            self.close()
            raise

    def close(self) -> None:
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
