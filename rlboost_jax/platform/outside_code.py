"""Code of other packages that a setting names: "package.module:function".

What is found may be anything; the caller says what it has to be.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform.bounded_files import read_bytes
from rlboost_jax.platform.mistakes import suggestion

PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MOST_BYTES: Final = 2**28  # of a module, which may be a library of machine code
OWN: Final = "package.module:function"  # how messages name it


class CodeNotFound(ValueError):
    """There is no such code; the message is the rest of a sentence that begins with its path."""


def imported(path: str) -> Any:
    """Import what a path names. Raises CodeNotFound."""
    module_name, _, place = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's raises anything
        raise CodeNotFound(f"cannot be imported: {type(error).__name__}: {error}") from error
    for part in place.split("."):
        if not hasattr(found, part):
            known = [n for n in vars(found) if not n.startswith("_") and callable(vars(found)[n])]
            hint = suggestion(part, known) if known else "it has no function"
            raise CodeNotFound(f"cannot be imported: no {part!r} in {module_name}; {hint}")
        found = getattr(found, part)
    return found


def entry_points_of(group: str) -> dict[str, str]:
    """Paths that installed packages have given names to, in a group of Python's entry points."""
    return {each.name: each.value for each in importlib.metadata.entry_points(group=group)}


def source_of(path: str) -> Path:
    """Find the file of the module that a path names. Raises CodeNotFound."""
    module_name = path.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):  # ValueError: a module that was not imported from a file
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise CodeNotFound(f"is in no file: {module_name!r} is not read from one; use a module")
    return Path(spec.origin)


def digest_of(path: str) -> str:
    """SHA-256 of the module's file, in hex. Raises CodeNotFound, Unreadable, OSError."""
    data = read_bytes(source_of(path), _MOST_BYTES, "a module of Python")
    return hashlib.sha256(data).hexdigest()
