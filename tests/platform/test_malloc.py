"""Memory goes back to the system, measured in a process of its own."""

import platform
import subprocess
import sys

import pytest

# A large block freed once lets glibc put others like it into the heap, between small ones.
SOURCE = """
import os
from pathlib import Path

from rlboost_jax.platform.malloc import keep_small

if {configured}:
    assert keep_small()
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
large = os.urandom(20 * 2**20)
del large
kept, large = [], []
for number in range(200):
    large.append(os.urandom(2**19))
    kept.append(os.urandom(2000))
before = resident()
del large
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("configured", [True, False])
def test_large_blocks_go_back_at_once(configured):
    """100 MB of them: without the setting, glibc keeps most for itself."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE.format(configured=configured)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (int(done.stdout) > 90 * 2**20) == configured
