"""The safetensors files of a checkpoint: which tensors there are, and in which file. No JAX here.

Files are mapped, and nothing of a tensor is read before it is asked for.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import safetensors

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained
from rlboost_jax.platform.closing import Closing
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.foreign_keys import report_unknown

TYPES: Final = ("F32", "F16", "BF16")
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
HEAD: Final = "lm_head.weight"
TABLE: Final = "embed_tokens.weight"
PREFIX: Final = "model."
_PREFIXES: Final = (PREFIX, "language_model.model.", "model.language_model.", "")
_ENDS: Final = (TABLE, "norm.weight")  # what every text model has under its prefix
_LONGEST_NAME: Final = 500  # characters
_LONGEST_FILE: Final = 200  # of a name
_COMPARED_BYTES: Final = 2**26  # at once


class CheckpointUnusable(Mistake, ValueError):
    """A file or tensor of a checkpoint is missing, surplus, broken or of another shape."""


@contextlib.contextmanager
def named_by(setting: str) -> Iterator[None]:
    """Begin errors about a checkpoint with the setting that names it."""
    try:
        yield
    except CheckpointUnusable as error:
        raise CheckpointUnusable(f"{setting}: {error}") from None


class TensorFiles(Closing):
    """The tensors of a folder by name, whichever files they are in."""

    def __init__(self, folder: Path, *, single: str = SINGLE) -> None:
        """
        Args:
            single: the file that has all tensors, where there is no index of several.

        Raises:
            CheckpointUnusable: files are missing or broken.
        """
        self.folder, self._single = folder, single
        self._stack = contextlib.ExitStack()
        self._open: dict[str, Any] = {}
        self._names: dict[str, frozenset[str]] = {}  # made once a file: there may be many tensors
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
        """Prefix of all tensor names but the head's: text models within others have their own."""
        for end in _ENDS:
            for prefix in _PREFIXES:
                if f"{prefix}{end}" in self.files:
                    return prefix
        return PREFIX  # the first tensor that is missed will say so

    def table(self) -> str:
        """Name of the embeddings, whether present or not."""
        return self.prefix() + TABLE

    def head(self) -> str:
        """Name of the output head, whether present or not; raises CheckpointUnusable for two."""
        found = sorted(n for n in self.files if n == HEAD or n.endswith(f".{HEAD}"))
        if len(found) > 1:
            raise CheckpointUnusable(
                f"{self.folder} has {len(found)} heads: {', '.join(found)}; a text model has one"
            )
        return found[0] if found else HEAD

    def own_head(self) -> str:
        """Name of a head that is not the embeddings; "" if it is a copy, or either is missing.

        Raises:
            CheckpointUnusable: two heads.
        """
        head, table = self.head(), self.table()
        if head not in self.files or table not in self.files:
            return ""
        return "" if _equal(self.slice_of(head), self.slice_of(table)) else head

    def path(self, name: str) -> Path:
        return self.folder / self.files[name]

    def slice_of(self, name: str) -> Any:
        """Return the tensor as safetensors gives it: with a shape and a type, not yet read."""
        return self._handle(self.files[name]).get_slice(name)

    def _find(self) -> dict[str, str]:
        index, single = self.folder / INDEX, self.folder / self._single
        if self._single != SINGLE or not index.is_file():
            if not single.is_file():
                raise CheckpointUnusable(
                    f"{self.folder} has "
                    + (
                        f"neither {SINGLE} nor {INDEX}"
                        if self._single == SINGLE
                        else f"no {single.name}"
                    )
                    + "; weights in other formats must be converted: load them in transformers, or "
                    "in PEFT, and save_pretrained"
                )
            return dict.fromkeys(self._keys(self._single), self._single)
        try:
            values = foreign_json.read(index, dict)
        except (OSError, Unreadable) as error:
            raise CheckpointUnusable(explained(error)) from None
        weight_map: Any = values.get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointUnusable(
                f"{index} has no weight_map, an object with the file of each tensor"
            )
        if odd := [file for file in weight_map.values() if not isinstance(file, str)]:
            raise CheckpointUnusable(
                f"{index} places a tensor in {odd[0]!r:.60}; it must be the name of a file"
            )
        files = dict.fromkeys(weight_map.values())
        report_unknown(values, ("weight_map", "metadata"), str(index))
        for file in files:
            if Path(file).name != file or len(file) > _LONGEST_FILE or not file.isprintable():
                raise CheckpointUnusable(
                    f"{index} places a tensor in {file!r}; it must be the name of a file beside it"
                )
        for file in files:
            if not (self.folder / file).is_file():
                first = next(name for name, where in weight_map.items() if where == file)
                raise CheckpointUnusable(
                    f"{self.folder / file} is missing, which by {INDEX} has tensor {first} and "
                    f"{sum(where == file for where in weight_map.values()) - 1} others; fetch it"
                )
        placed: dict[str, str] = weight_map
        return placed

    def _keys(self, file: str) -> frozenset[str]:
        if file not in self._names:
            names = frozenset(self._handle(file).keys())
            if odd := [n for n in names if len(n) > _LONGEST_NAME or not n.isprintable()]:
                raise CheckpointUnusable(
                    f"{self.folder / file} has a tensor of the name {odd[0][:60]!r}; names are of "
                    f"1 to {_LONGEST_NAME} printable characters"
                )
            self._names[file] = names
        return self._names[file]

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


def _equal(first: Any, second: Any) -> bool:
    """Whether two stored matrices hold the same numbers, even in different types."""
    shape = first.get_shape()
    if shape != second.get_shape() or len(shape) != 2:
        return False
    if not {first.get_dtype(), second.get_dtype()} <= {*TYPES}:
        return False
    rows = max(1, _COMPARED_BYTES // max(1, 4 * shape[1]))
    for start in range(0, shape[0], rows):
        end = min(start + rows, shape[0])
        ours, theirs = first[start:end], second[start:end]
        if ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes():
            continue  # NaNs too
        if not np.array_equal(ours.astype(np.float32), theirs.astype(np.float32), equal_nan=True):
            return False
    return True
