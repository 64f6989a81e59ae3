"""How a fingerprint is written, for engines that make one and for the manager, which compares them.

jax0.10.2-NVIDIA_H100_80GB_HBM3-mosaic_gpu-0123456789abcdef
"""

import hashlib
from typing import get_args

from rlboost_jax.settings.engine_config import EngineAttention


def composed(version: str, device: str, *, attention: str, digest: str) -> str:
    """Compose an engine's fingerprint.

    Args:
        version: of jax.
        device: its kind.
        attention: implementation that is run; "" leaves it out.
        digest: of all that bits depend on.
    """
    parts = (f"jax{version}", device.replace(" ", "_"), attention, digest)
    return "-".join(part for part in parts if part)


def with_bits(fingerprint: str, bits: str) -> str:
    """Add to an engine's fingerprint a digest of the bits that it was seen to make."""
    named, _, digest = fingerprint.rpartition("-")
    return f"{named}-{hashlib.sha256(f'{digest} {bits}'.encode()).hexdigest()[:16]}"


def attention_of(fingerprint: str) -> str:
    """Return the implementation of attention that a fingerprint names; "" if none."""
    parts = fingerprint.split("-")
    return parts[-2] if len(parts) > 3 and parts[-2] in get_args(EngineAttention) else ""


def difference(theirs: str, ours: str) -> str:
    """Clause that says where two fingerprints differ in attention; "" where they do not."""
    named, wanted = attention_of(theirs), attention_of(ours)
    if named == wanted or not wanted:
        return ""
    return (
        f": its attention is {named or 'another'}, and this run's is {wanted} "
        "(engine.attention, chosen when the run began); if its device cannot run that, take "
        "another kind of device"
    )
