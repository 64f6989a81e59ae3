"""On what kinds of host a deterministic run was, and by how many processes.

Bits are those of a device and its software. A run that goes on elsewhere is as good as before, but
from there on it is not the run that it would have been: it says so.
"""

from pathlib import Path
from typing import Any, Final

from rlboost_jax.storage import at_rest
from rlboost_jax.storage.durable import Damaged

FILE: Final = "fingerprints.json"


def note_host(workdir: Path, step: int, fingerprint: str) -> str:
    """Record from which step on the trainer's own engine has a fingerprint.

    A step that was begun on another host counts: tokens of it may be used.

    Returns:
        A line where it had another one before, or where what it had cannot be read; "" else.
    """
    before, damaged = _note(workdir, step, "engines", "fingerprint", fingerprint)
    if damaged or before == fingerprint:
        return damaged
    return (
        f"from step {step} on the trainer's engine is {fingerprint}; before it was {before}: "
        "bits are those of this host from here on"
    )


def note_processes(workdir: Path, step: int, count: int) -> str:
    """Record from which step on the trainer has so many processes; returns as `note_host` does."""
    before, damaged = _note(workdir, step, "trainer", "processes", count)
    if damaged or before == count:
        return damaged
    return (
        f"from step {step} on the trainer's processes are {count}; before it were {before}: sums "
        "over their devices may differ by rounding from here on"
    )


def _note(workdir: Path, step: int, of: str, name: str, value: Any) -> tuple[Any, str]:
    """Record a value from a step on.

    Returns:
        the value of before, or this one where none is known; and what is wrong with the record.
    """
    path = workdir / FILE
    try:
        found = at_rest.read_sealed(path, "it is made anew") or {}
    except Damaged as error:  # nothing follows from it
        at_rest.write_sealed(path, {of: [{"step": step, name: value}]})
        return value, f"on what kind of host the run was is not known: {error}"
    places = [each for each in found.get(of, ()) if each["step"] <= step]
    before = places[-1][name] if places else value
    if not places or before != value:
        places.append({"step": step, name: value})
    if found.get(of) != places:
        at_rest.write_sealed(path, {**found, of: places})
    return before, ""
