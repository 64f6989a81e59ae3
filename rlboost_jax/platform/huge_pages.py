"""Large pages for what a trainer allocates: glibc must be asked for them as a process starts.

XLA on CPU takes memory from malloc for every intermediate result and gives it back, and glibc
returns it to the system: every gradient of a model of 11 M parameters then met 400,000 page
faults, an eighth of its processor time. With `glibc.malloc.hugetlb=1` malloc asks for pages of
2 MB, and there are 5,000.
"""

import os
import platform
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

TUNABLES: Final = "GLIBC_TUNABLES"
WANTED: Final = "glibc.malloc.hugetlb=1"  # madvise, which costs nothing where there are none
ASKED: Final = "RLBOOST_HUGE_PAGES_ASKED"  # in the environment of a process that was started anew
POLICY: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def start_with_huge_pages() -> None:
    """Run the same command anew with glibc's setting, where that helps; else return.

    To be called before a process has done anything: it keeps its id and its open files, and
    nothing else. Its children get the environment that it was given itself.
    """
    environment = dict(os.environ)
    if asks(environment, glibc=platform.libc_ver()[0] == "glibc", policy=_policy()):
        environment |= {TUNABLES: WANTED, ASKED: "1"}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    forget(os.environ)


def asks(environment: Mapping[str, str], *, glibc: bool, policy: str) -> bool:
    """Whether a restart would help: nothing is set yet, and the kernel waits to be asked.

    Args:
        policy: of the kernel; only "[madvise]" waits to be asked.
    """
    return glibc and "[madvise]" in policy and not {TUNABLES, ASKED} & environment.keys()


def forget(environment: MutableMapping[str, str]) -> None:
    """Remove the variables that the restart has set."""
    if environment.pop(ASKED, None):
        environment.pop(TUNABLES, None)


def _policy() -> str:
    try:
        return POLICY.read_text()
    except OSError:
        return ""
