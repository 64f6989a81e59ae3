"""Rows of a data set by random access, whatever the format.

Row i is always the same one. Files are taken in the order of their names. A row that cannot be
read raises when it is requested; the others are unaffected.
"""

import glob
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, assert_never

from rlboost_jax.data.row import Rows
from rlboost_jax.data.table_rows import SAVED, ArrayRecords, HuggingFaceRows, ParquetRows
from rlboost_jax.data.text_rows import TextRows
from rlboost_jax.platform.mistakes import ConfigError, plain
from rlboost_jax.platform.readable import check_text
from rlboost_jax.settings.data_config import DataFormat
from rlboost_jax.settings.huggingface.sources import missing_folder

FileFormat = Literal["jsonl", "csv", "tsv", "parquet", "arrayrecord"]

ENDINGS: Final[Mapping[str, FileFormat]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
}
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst")  # after the ending of a text file
_TEXT: Final = ("jsonl", "csv", "tsv")


def open_rows(
    source: str, format: DataFormat, *, subset: str, split: str, columns: Collection[str]
) -> Rows:
    """Open the rows of `data.source`; only `columns` are needed.

    Raises:
        ConfigError: the source does not exist, or it lacks a column.
    """
    source = os.path.expanduser(source)
    kind = _format(source) if format == "auto" else format
    if format == "auto" and kind == "huggingface" and (reason := missing_folder(source)):
        raise ConfigError(
            f"data.source {source!r}: {reason}; if it is a name on the hub, set data.format to "
            "'huggingface'"
        )
    if kind == "huggingface":
        return HuggingFaceRows(source, subset=subset, split=split or "train", columns=columns)
    for name, value in (("subset", subset), ("split", split)):
        if value:
            raise ConfigError(
                f"data.{name} is {value!r}, and files of format {kind} have none; set it to ''"
            )
    paths = _files(source, kind)
    match kind:
        case "jsonl" | "csv" | "tsv":
            return TextRows(paths, kind, columns=columns)
        case "parquet":
            return ParquetRows(paths, columns=columns)
        case "arrayrecord":
            return ArrayRecords(paths)
        case _:
            assert_never(kind)


def _format(source: str) -> FileFormat | Literal["huggingface"]:
    path = Path(source)
    if os.path.isdir(path):  # False where a folder above may not be entered
        if any((path / name).exists() for name in SAVED):
            return "huggingface"
        found = {kind for file in _visible(path) if (kind := _ending(file))}
        if len(found) == 1:
            return found.pop()
        raise ConfigError(
            f"data.source {source!r} is a folder of {', '.join(sorted(found)) or 'no known files'};"
            " set data.format, or name files such as folder/*.jsonl"
        )
    if kind := _ending(path):
        return kind
    if os.path.exists(path) or "*" in source or source.count("/") > 1 or source.startswith("."):
        raise ConfigError(
            f"data.source {source!r}: its ending says no format; set data.format, or name a file "
            f"that ends in {', '.join(ENDINGS)}, the text ones also with .gz behind"
        )
    return "huggingface"


def _visible(folder: Path) -> Iterator[Path]:
    """Files that a pattern would match: macOS, for one, puts `._rows.jsonl` by `rows.jsonl`."""
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def _ending(path: Path) -> FileFormat | None:
    """Format that a file's name implies, if any."""
    name = path.name.lower()
    plain = next((name.removesuffix(end) for end in _COMPRESSED if name.endswith(end)), name)
    kind = ENDINGS.get(Path(plain).suffix)
    return kind if plain == name or kind in _TEXT else None


def _nearby(path: Path, format: str) -> str:
    """Files of the format that stand where a missing file was looked for, or what to do."""
    if path.is_dir() or "*" in str(path.parent):
        return "name another"
    if not path.parent.is_dir():
        return f"there is no folder {plain(path.parent)} here; name another"
    try:
        found = sorted(file.name for file in _visible(path.parent) if _ending(file) == format)
    except PermissionError:
        found = []
    if not found:
        return "name another"
    shown = ", ".join(map(plain, found[:5])) + (", …" if len(found) > 5 else "")
    where = "this folder" if path.parent == Path() else f"the folder {plain(path.parent)}"
    return f"{where} has {shown}; name another"


def _files(source: str, format: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        found = sorted(f for f in _visible(path) if _ending(f) == format)
    elif "*" in source:
        found = sorted(f for f in map(Path, glob.glob(source, recursive=True)) if f.is_file())
    else:
        found = [path] if path.is_file() else []
    if not found:
        raise ConfigError(
            f"data.source {source!r}: no such file of format {format}; {_nearby(path, format)}"
        )
    for file in found:
        check_text(file, "a file of data.source")
    return found
