"""Verdicts on disk: one small file for each problem, shape, kind of device and set of versions.

A file that is damaged, or is not of this very key, counts as missing and is written anew.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.host.code_places import foreign
from rlboost_jax.qualification.records import Verdict
from rlboost_jax.storage import durable, foreign_json

FOLDER: Final = "qualification"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: dict[str, Any]
    digest: str  # SHA-256 of the key and the verdict
    verdict: Verdict


def place_of(folder: Path, problem: str, key: Mapping[str, Any]) -> Path:
    """Where the verdict for a key is kept, if it is.

    Args:
        folder: of compiled programs, shared by all versions.
        key: all that a verdict depends on; JSON can hold it.
    """
    digest = hashlib.sha256(_encoded(key)).hexdigest()
    return folder / FOLDER / f"{problem}-{digest[:16]}.json"


def kept(path: Path, key: Mapping[str, Any]) -> Verdict | None:
    """The verdict that is kept for a key; None if there is none, or none that can be trusted."""
    try:
        if foreign(path.parent):
            return None
        file = msgspec.convert(foreign_json.read(path, dict), _File)
    except (OSError, ValueError):
        return None
    intact = file.digest == _digest(file.key, file.verdict)
    return file.verdict if intact and _encoded(file.key) == _encoded(key) else None


def keep(path: Path, key: Mapping[str, Any], verdict: Verdict) -> str:
    """Write a verdict in one piece. Returns why that cannot be, or ""."""
    file = _File(key=dict(key), digest=_digest(key, verdict), verdict=verdict)
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


def _digest(key: Mapping[str, Any], verdict: Verdict) -> str:
    return hashlib.sha256(_encoded(key) + msgspec.json.encode(verdict)).hexdigest()


def _encoded(key: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(key, order="sorted")
