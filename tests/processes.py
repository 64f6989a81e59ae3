"""What lives on this machine, as far as /proc shows it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    command: str  # its arguments, with blanks between
    environment: frozenset[str]  # `NAME=value`, as it was started


def living() -> Iterator[Process]:
    """Processes whose environment we may read, but for zombies; none on systems without /proc."""
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                environment = (folder / "environ").read_bytes().decode(errors="replace")
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if state not in "ZX":
                    yield Process(
                        int(folder.name),
                        command.replace("\0", " ").strip(),
                        frozenset(environment.split("\0")),
                    )


def marked(mark: str) -> dict[int, str]:
    """Commands of living processes with that `NAME=value` in their environment."""
    return {each.pid: each.command for each in living() if mark in each.environment}
