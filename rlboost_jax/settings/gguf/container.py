"""The header of a GGUF file: what it says about its model, and where its tensors lie. No JAX here.

The file is mapped and only its header is read. Every length in it is compared with what is left of
the file before anything is made of it: a header of any content ends in a value or in one line. The
package gguf reads headers too; it takes 38 seconds and 700 MB for a vocabulary of 262,144 entries,
and does not end at a length beyond the file.

Source: the GGUF specification of the ggml project, versions 2 and 3, little-endian.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlboost_jax.platform.bounded_files import Unreadable, open_regular
from rlboost_jax.platform.mistakes import Mistake

SUFFIX: Final = ".gguf"
FILE: Final = ".stands-for.gguf"  # a link, in a folder that stands for a GGUF file
ALIGNMENT: Final = 32  # bytes, where `general.alignment` is not given
MOST_HEADER_BYTES: Final = 2**28
MOST_ENTRIES: Final = 2**22  # of one list
MOST_TENSORS: Final = 2**20
MOST_AXES: Final = 4
MOST_NAME: Final = 256  # characters of a tensor's name; ggml keeps 64
MOST_PARTS: Final = 1024  # files of one model
ARCHITECTURE: Final = "general.architecture"
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_TEXT, _LIST = 8, 9
_NUMBERS: Final[Mapping[int, str]] = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
_PART: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufUnusable(Mistake, ValueError):
    """A file is no GGUF file, is cut off, or has values that no such file has."""


@dataclass(frozen=True, kw_only=True)
class BlockTensor:
    """Position of a tensor in the file, and how its numbers are stored.

    Attributes:
        shape: as NumPy has it, the last axis running fastest; the file has the axes reversed.
        kind: number of the type in ggml's list.
        offset: of its first byte in the file.
    """

    path: Path
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Container:
    """A GGUF model, in one file or in several parts.

    Attributes:
        metadata: values by key: numbers, texts, and lists as tuples of texts or NumPy arrays.
        tensors: by their names in the file.
        header_bytes: length of the first file's header.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, BlockTensor]
    header_bytes: int


def read_container(path: Path) -> Container:
    """Read the headers of a file and, of a model in parts, of its other parts.

    Raises:
        GgufUnusable: names the file and what is wrong with it.
    """
    first, *others = _parts(path)
    found = _read(first)
    tensors = dict(found.tensors)
    kind = repr(found.metadata.get(ARCHITECTURE))  # whatever the file says: it may be an array
    for other in others:
        part = _read(other)
        own = repr(part.metadata[ARCHITECTURE]) if ARCHITECTURE in part.metadata else kind
        if own != kind:  # most parts do not say
            raise GgufUnusable(
                f"{other} is part of a model of {ARCHITECTURE} {own}, and {first} of {kind}; "
                "fetch all parts of one model"
            )
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise GgufUnusable(f"{other} has tensor {name}, and so has an earlier part")
            tensors[name] = tensor
    return Container(
        path=first, metadata=found.metadata, tensors=tensors, header_bytes=found.header_bytes
    )


def _parts(path: Path) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if not match:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MOST_PARTS:
        raise GgufUnusable(f"{path} is one of {count} parts; 1 to {MOST_PARTS} are read")
    names = [f"{match['stem']}-{n:05}-of-{count:05}{SUFFIX}" for n in range(1, count + 1)]
    paths = [path.with_name(name) for name in names]
    for each in paths:
        if not each.is_file():
            raise GgufUnusable(f"{each} is missing, a part of the model that {path} is in")
    return paths


def _read(path: Path) -> Container:
    try:
        with (
            open(open_regular(path, "a GGUF file"), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Cursor(path, data).header()
    except Unreadable as error:
        raise GgufUnusable(str(error)) from None
    except OSError as error:
        raise GgufUnusable(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, GgufUnusable):
            raise
        raise GgufUnusable(f"{path} is no GGUF file: {error}") from None  # an empty file


class _Cursor:
    """Position in a mapped file that advances as values are read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0
        self._end = min(len(data), MOST_HEADER_BYTES)

    def header(self) -> Container:
        if self._take(4) != _MAGIC:
            raise self._wrong("it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise self._wrong(f"its version is {version}; 2 and 3 are read, little-endian")
        num_tensors, num_values = self._number("<Q"), self._number("<Q")
        for what, count, most in (
            ("tensors", num_tensors, MOST_TENSORS),
            ("values", num_values, MOST_TENSORS),
        ):
            if count > most:
                raise self._wrong(f"it has {count:,} {what}; at most {most:,} are read")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text()
            if key in metadata:
                raise self._wrong(f"it has the key {key[:60]!r} twice")
            metadata[key] = self._value(self._number("<I"))
        found = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        whole = isinstance(alignment, int) and not isinstance(alignment, bool)
        if not whole or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {alignment!r}; it must be a power of two")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, BlockTensor] = {}
        for name, shape, kind, offset in found:
            if name in tensors:
                raise self._wrong(f"it has tensor {name[:60]} twice")
            tensors[name] = BlockTensor(
                path=self._path, shape=shape, kind=kind, offset=start + offset
            )
        return Container(path=self._path, metadata=metadata, tensors=tensors, header_bytes=self._at)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._text(), self._number("<I")
        if len(name) > MOST_NAME or not name.isprintable():
            raise self._wrong(f"it names a tensor {name[:60]!r}")
        if not 1 <= axes <= MOST_AXES:
            raise self._wrong(f"tensor {name[:60]} has {axes} axes; 1 to {MOST_AXES} are read")
        shape = tuple(self._number("<Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise self._wrong(f"tensor {name[:60]} has shape {list(shape)}")
        return name, shape, self._number("<I"), self._number("<Q")

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            raise self._wrong(f"it has a value of type {kind}, which nothing here reads")
        inner, count = self._number("<I"), self._number("<Q")
        if count > MOST_ENTRIES:
            raise self._wrong(f"it has a list of {count:,}; at most {MOST_ENTRIES:,} are read")
        if inner in _NUMBERS:
            dtype = np.dtype(_NUMBERS[inner].replace("<?", "?"))
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        if inner == _TEXT:
            return tuple(self._text() for _ in range(count))
        raise self._wrong(f"it has a list of type {inner}, which nothing here reads")

    def _text(self) -> str:
        length = self._number("<Q")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._wrong(f"a text that ends at byte {self._at:,} is not UTF-8") from None

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, count: int) -> bytes:
        if count > self._end - self._at:
            raise self._wrong(
                f"it wants {count:,} bytes at byte {self._at:,}, and "
                + (
                    f"headers of at most {MOST_HEADER_BYTES:,} are read"
                    if self._end == MOST_HEADER_BYTES
                    else "there are no more; fetch it again"
                )
            )
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def _wrong(self, reason: str) -> GgufUnusable:
        return GgufUnusable(f"{self._path} is no GGUF file that can be read: {reason}")
