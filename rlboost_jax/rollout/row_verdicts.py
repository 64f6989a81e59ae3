"""Verdicts of row invariance, kept on disk so that the next process need not check again.

The check (`engine/invariance.py`) runs programs on weights of its own, so its outcome does not
depend on what a run trains: it is the same for equal programs on equal machines. The verdict is
kept beside the compiled programs, under a key of all that it depends on. A server that starts with
the same programs on a machine of the same kind reads it and runs no check.

Such a file is as safe as the programs beside it. On a host only its user may write there. To other
hosts both travel in the index that the run's trainer seals (`weights/compiled.py`); a verdict is
never taken from a server.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import rlboost_kernels

from rlboost_jax import engine, models
from rlboost_jax.engine.engine import Engine
from rlboost_jax.platform import compile_cache
from rlboost_jax.qualification import cache
from rlboost_jax.settings import fingerprints

_NAME: Final = "rows"  # begins the names of the files
# Beginnings of the names of the programs that are checked; not every engine has the last.
_STEPS: Final = ("jit__mixed-", "jit__decode-", "jit__verify-")
_CODE: Final = (".py", ".so")


class RowVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict that rows are independent, with a digest of the bits that the check computed."""

    bits: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def check_rows(built: Engine, programs: list[str], say: Callable[[str], None]) -> None:
    """Check an engine for row invariance, unless a kept verdict shows that it was checked.

    Args:
        built: with every program compiled and nothing loaded.
        programs: names of their files in the cache; that of the verdict is added to them.
        say: takes a line for the log.

    Raises:
        RowsNotInvariant: this device cannot take part in a deterministic run. This outcome is not
            kept.
    """
    folder = compile_cache.place()
    key = _key(built, folder, programs) if folder is not None else None
    if folder is None or key is None:
        built.assert_row_invariance()
        return
    path = folder / cache.name_of(_NAME, key)
    if (verdict := cache.kept(path, key, RowVerdict)) is None:
        line = "waiting for another process on this host, which checks row invariance"
        with compile_cache.turn(path.name, lambda: say(line)):
            if (verdict := cache.kept(path, key, RowVerdict)) is None:
                damaged = "; what was kept is damaged" if path.exists() else ""
                say(f"checking row invariance, for which nothing is kept{damaged}")
                bits = built.assert_row_invariance()
                trouble = cache.keep(path, key, RowVerdict(bits=bits))
                where = f"not kept: {trouble}" if trouble else f"kept in {path}"
                say(f"rows are independent; {where}")
                programs.append(path.name)
                return
    built.fingerprint = fingerprints.with_bits(built.described, verdict.bits)
    programs.append(path.name)
    say(f"rows are independent, as kept in {path}")


def _key(built: Engine, folder: Path, programs: Iterable[str]) -> Mapping[str, Any] | None:
    """Everything the outcome depends on; None if the programs are not in the cache."""
    steps = sorted({name for name in programs if name.startswith(_STEPS)})
    checked = len(_STEPS) if built.layout.text_tokens else len(_STEPS) - 1
    if len(steps) < checked:
        return None
    try:
        entries = {name: _digest_of((folder / name,)) for name in steps}
    except OSError:  # one was not worth keeping, or the folder is gone
        return None
    return {
        "engine": built.described,  # model, types, versions, flags and processor features
        "layout": dataclasses.asdict(built.layout),
        "steps": built.programs.max_steps,
        "programs": entries,
        "code": _digest_of(_code()),
        "threads": _threads() if built.device.platform == "cpu" else 0,
    }


def _threads() -> str:
    """Number of threads XLA computes with on a CPU: it divides sums among them."""
    return os.environ.get("NPROC", "") or str(len(os.sched_getaffinity(0)))


def _code() -> Iterable[Path]:
    """Source files of the check, of the weights it makes, and of kernels called by name only."""
    for module in (engine, models, rlboost_kernels):
        folder = Path(str(module.__file__)).parent
        yield from sorted(path for path in folder.rglob("*") if path.suffix in _CODE)


def _digest_of(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()
