"""Reading of parameters from a checkpoint's safetensors files, or its GGUF file.

Reading goes leaf by leaf: a device is given its own slice of a leaf, which is put together from
the slices of the tensors in it, in one dtype, by a thread for each core. The files are mapped, not
loaded, so that the host holds what one leaf has on its devices, and no device holds anything twice.
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.models.rope import Rope, frequencies, ropes
from rlboost_jax.models.tensor_names import Stored, stored
from rlboost_jax.settings.foreign_keys import warn_once
from rlboost_jax.settings.gguf.gguf_tensors import open_tensors
from rlboost_jax.settings.huggingface.tensor_files import (
    PREFIX,
    TYPES,
    CheckpointUnusable,
    TensorFiles,
)
from rlboost_jax.settings.model_config import ModelConfig

_AT_ONCE: Final = 2**20  # numbers that a thread reads and casts
_ALIGNMENT: Final = 64  # bytes; JAX copies arrays that begin elsewhere
_UNUSED: Final = (
    "rotary_emb.inv_freq",
)  # ends of names that older files have; rope.py knows better
_UNTIED: Final = " (with tie_word_embeddings true in config.json, the head is the table)"


def read_checkpoint(
    model: ModelConfig,
    folder: str | Path,
    *,
    shardings: Params | None = None,
    dtype: str = "float32",
) -> Params:
    """Read the parameters of a checkpoint.

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
    with open_tensors(Path(folder)) as tensors:
        prefix, head = tensors.prefix(), tensors.head()
        plan = {n: stored(model, n, leaf.shape, prefix, head) for n, leaf in leaves.items()}
        if model.tie_embeddings and tensors.table() not in tensors.files and head in tensors.files:
            plan["embedding.table"] = Stored({(): head}, transposed=False)  # it has the one name
        _check(tensors, model, {n: (plan[n], leaf.shape) for n, leaf in leaves.items()}, prefix)
        return unflatten_params(
            {
                name: read_leaf(tensors, plan[name], leaf.shape, places[name], np.dtype(dtype))
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
    with open_tensors(Path(folder)) as tensors:
        for name in sorted(tensors.files):
            tensor = tensors.slice_of(name)
            shape, kind = tensor.get_shape(), tensor.get_dtype()
            digest.update(f"{name} {kind} {shape}\n".encode())
            if shape and 0 not in shape and kind in TYPES:
                digest.update(tensor[:1].tobytes())
    return digest.hexdigest()


def _check(
    tensors: TensorFiles,
    model: ModelConfig,
    plan: Mapping[str, tuple[Stored, tuple[int, ...]]],
    prefix: str,
) -> None:
    """Raise CheckpointUnusable unless the checkpoint has exactly the tensors of the model."""
    wanted = check_tensors(tensors, plan)
    head = tensors.head()
    for name in sorted(tensors.files.keys() - wanted):
        beside = prefix not in (PREFIX, "") and not name.startswith(prefix)  # such as vision
        of_another = beside and "lm_head" not in name.split(".")
        copy_of_table = name == head and model.tie_embeddings
        if copy_of_table and tensors.own_head():
            raise CheckpointUnusable(
                f"tensor {name} in {tensors.path(name)} is not {tensors.table()}, to which "
                "the settings tie it; set tie_word_embeddings to false in config.json"
            )
        if not (of_another or copy_of_table or name.endswith(_UNUSED)):
            raise CheckpointUnusable(
                f"tensor {name} in {tensors.path(name)} has no place in a {model.family} as "
                "config.json describes it"
            )
        if name.endswith(_UNUSED):
            _compare_frequencies(tensors, model, name)


def _compare_frequencies(tensors: TensorFiles, model: ModelConfig, name: str) -> None:
    """Warn if an old file has other rotary frequencies than follow from config.json."""
    tensor = tensors.slice_of(name)
    shape = tuple(tensor.get_shape())
    some = tensor.get_dtype() in TYPES and shape and 0 not in shape  # others cannot be cut
    stored_ones = np.asarray(tensor[:], np.float64) if some else np.array(0)
    every = {r for rope in ropes(model) for r in (rope, Rope(rope.theta))}  # scaled or not
    for rope in every:
        expected = frequencies(rope, model.head_dim)
        if stored_ones.shape == expected.shape and np.allclose(stored_ones, expected, rtol=0.02):
            return
    warn_once(
        f"tensor {name} in {tensors.path(name)} is passed over, and is not what config.json makes "
        f"of rope_theta ({model.rope_theta:g}) and its scaling"
    )


def check_tensors(
    tensors: TensorFiles,
    plan: Mapping[str, tuple[Stored, tuple[int, ...]]],
    said_by: str = "config.json",
) -> set[str]:
    """Check the tensors of a plan, each leaf's with its shape; returns their names.

    Args:
        said_by: the file that the shapes follow from, for messages.

    Raises:
        CheckpointUnusable: one is missing, or of another shape or type.
    """
    wanted: set[str] = set()
    for leaf, ((names, transposed), shape) in plan.items():
        for index, name in names.items():
            wanted.add(name)
            expected = shape[len(index) :][:: -1 if transposed else 1]
            if name not in tensors.files:
                raise CheckpointUnusable(
                    f"{tensors.folder} has no tensor {name} of shape {list(expected)}, which "
                    f"becomes {leaf}; is it whole, and does {said_by} speak of it?"
                    + (_UNTIED if leaf == "head.kernel" else "")
                )
            found = tensors.slice_of(name)
            if tuple(found.get_shape()) != expected:
                raise CheckpointUnusable(
                    f"tensor {name} in {tensors.path(name)} has shape {found.get_shape()}, and "
                    f"{said_by} makes it {list(expected)}"
                )
            if found.get_dtype() not in TYPES:
                raise CheckpointUnusable(
                    f"tensor {name} in {tensors.path(name)} has type {found.get_dtype()}; known: "
                    f"{', '.join(TYPES)}"
                )
    return wanted


def read_leaf(
    tensors: TensorFiles,
    how: Stored,
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    dtype: np.dtype,
) -> jax.Array:
    """Read one leaf onto its devices, cast on all cores that this process may use."""
    stacked = len(next(iter(how.tensors)))

    def read(index: tuple[slice, ...] | None) -> np.ndarray:
        cuts = [slice(*cut.indices(n)) for cut, n in zip(index or (), shape, strict=True)]
        out = _aligned([cut.stop - cut.start for cut in cuts], dtype)
        inner = tuple(cuts[stacked:])
        stored_cuts = inner[::-1] if how.transposed else inner
        parts = []
        for place in np.ndindex(*out.shape[:stacked]):
            at = tuple(i + cut.start for i, cut in zip(place, cuts, strict=False))
            tensor = tensors.slice_of(how.tensors[at])
            whole = out[(*place, ...)]  # a view, of a single number as well
            target = whole.T if how.transposed else whole
            parts += [(target, tensor, stored_cuts, rows) for rows in _row_ranges(target)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            for _ in threads.map(_read_rows, parts):
                pass  # an error is raised here
        return out

    leaf = jax.make_array_from_callback(shape, sharding, read)
    return jax.block_until_ready(leaf)  # a copy on the host goes before the next leaf is read


def _read_rows(part: tuple[np.ndarray, Any, tuple[slice, ...], range]) -> None:
    """Fill some rows of an array from the same rows of a stored tensor's cut."""
    target, tensor, cuts, rows = part
    if not cuts:
        target[...] = tensor[cuts]
        return
    first = slice(cuts[0].start + rows.start, cuts[0].start + rows.stop)
    target[rows.start : rows.stop] = tensor[(first, *cuts[1:])]


def _row_ranges(array: np.ndarray) -> list[range]:
    """Ranges of rows that partition the array; each has about `_AT_ONCE` numbers."""
    count = array.shape[0] if array.ndim else 1
    step = max(1, _AT_ONCE * count // max(1, array.size))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Allocate an array that JAX on CPU takes over without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
