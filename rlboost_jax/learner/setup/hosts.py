"""Record of a run's kinds of host, releases and numbers of processes.

Bits are those of a device and its software. A run that goes on elsewhere is as good as before, but
from there on it is not the run that it would have been: a deterministic one says so.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rlboost_jax import __version__
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.platform.processor import processor_name

FILE: Final = "fingerprints.json"


def host_lines(workdir: Path, step: int, fingerprint: str, *, processes: int) -> Iterator[str]:
    """Record what a run is on from a step on.

    Args:
        fingerprint: of the trainer's own engine; "": the run is not deterministic.
        processes: of the trainer.

    Returns:
        lines for a person on what is another thing than before, and changes bits.
    """
    if fingerprint:
        yield from filter(None, (note_host(workdir, step, fingerprint),))
        yield from filter(None, (note_processes(workdir, step, processes),))
    _note(workdir, step, "releases", "release", __version__)
    _note(workdir, step, "processors", "processor", processor_name())


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
    """Record the trainer's number of processes from a step on; returns as `note_host` does."""
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
