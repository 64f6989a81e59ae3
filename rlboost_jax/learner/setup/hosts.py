"""On what kinds of host a deterministic run was.

Bits are those of a device and its software. A run that goes on elsewhere is as good as before, but
from there on it is not the run that it would have been: it says so.
"""

from pathlib import Path
from typing import Final

from rlboost_jax.storage import at_rest
from rlboost_jax.storage.durable import Damaged

FILE: Final = "fingerprints.json"


def note_host(workdir: Path, step: int, fingerprint: str) -> str:
    """Record from which step on the trainer's own engine has a fingerprint.

    A step that was begun on another host counts: tokens of it may be used.

    Returns:
        A line where it had another one before, or where what it had cannot be read; "" else.
    """
    path = workdir / FILE
    try:
        found = at_rest.read_sealed(path, "it is made anew")
    except Damaged as error:  # nothing follows from it
        at_rest.write_sealed(path, {"engines": [{"step": step, "fingerprint": fingerprint}]})
        return f"on what kind of host the run was is not known: {error}"
    places = [each for each in (found or {}).get("engines", ()) if each["step"] <= step]
    before = places[-1]["fingerprint"] if places else fingerprint
    if not places or before != fingerprint:
        places.append({"step": step, "fingerprint": fingerprint})
    if found != {"engines": places}:
        at_rest.write_sealed(path, {"engines": places})
    if before == fingerprint:
        return ""
    return (
        f"from step {step} on the trainer's engine is {fingerprint}; before it was {before}: "
        "bits are those of this host from here on"
    )
