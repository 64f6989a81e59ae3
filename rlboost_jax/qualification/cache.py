"""Verdicts on disk: one small file for each problem, shape, kind of device and set of versions.

A file that is damaged, or is not of this very key, counts as missing and is written anew.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rlboost_jax.platform import durable, foreign_json
from rlboost_jax.platform.code_places import foreign

FOLDER: Final = "qualification"

VerdictT = TypeVar("VerdictT", bound=msgspec.Struct)


class _VerdictFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: dict[str, Any]
    digest: str  # SHA-256 of the key and the verdict
    verdict: dict[str, Any]


def place_of(folder: Path, problem: str, key: Mapping[str, Any]) -> Path:
    """Return the path under which the verdict for a key is kept.

    Args:
        folder: of compiled programs, shared by all versions.
        key: all that a verdict depends on; JSON can hold it.
    """
    return folder / FOLDER / name_of(problem, key)


def name_of(problem: str, key: Mapping[str, Any]) -> str:
    """Name the file with the verdict for a key."""
    return f"{problem}-{hashlib.sha256(_encoded(key)).hexdigest()[:16]}.json"


def kept(path: Path, key: Mapping[str, Any], kind: type[VerdictT]) -> VerdictT | None:
    """Read the verdict for a key; None if there is none, or none that can be trusted."""
    try:
        if foreign(path.parent):
            return None
        file = msgspec.convert(foreign_json.read(path, dict), _VerdictFile)
        intact = file.digest == _digest(file.key, file.verdict)
        if not intact or _encoded(file.key) != _encoded(key):
            return None
        return msgspec.convert(file.verdict, kind)
    except (OSError, ValueError):
        return None


def keep(path: Path, key: Mapping[str, Any], verdict: msgspec.Struct) -> str:
    """Write a verdict in one piece. Returns why that cannot be, or ""."""
    values = msgspec.to_builtins(verdict)
    file = _VerdictFile(key=dict(key), digest=_digest(key, values), verdict=values)
    part = path.with_suffix(f".{os.getpid()}.part")  # others may write the same now
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if objection := foreign(path.parent):
            return f"{path.parent} {objection}"
        with open(part, "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode(file)))
            opened.flush()
            os.fsync(opened.fileno())
        durable.replace(part, path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _digest(key: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encoded(key) + msgspec.json.encode(verdict)).hexdigest()


def _encoded(key: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(key, order="sorted")
