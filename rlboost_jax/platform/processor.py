"""The name of this host's processor, for people to read."""

import platform
from pathlib import Path


def processor_name() -> str:
    """Return a name like "Intel(R) Xeon(R) Platinum 8481C"; without one, the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
