"""Faults of the files below a folder, for processes that are started with a library preloaded."""

import dataclasses
import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tests.preloaded import built

SOURCE = Path(__file__).parent / "faults.c"
Fault = Literal["open", "read", "write", "sync", "rename", "link", "lock", "list", "stat", "remove"]


def faults(folder: Path) -> Path:
    """The library to preload, built there."""
    return built(SOURCE, folder)


@dataclasses.dataclass(frozen=True)
class Rules:
    """
    Args:
        root: below it things fail.
        path: of the file of rules; for this alone.
        library: of `faults`.
    """

    root: Path
    path: Path
    library: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of the processes that are to meet the faults."""
        return {
            "LD_PRELOAD": str(self.library),
            "FAULTS_ROOT": str(self.root.resolve()),
            "FAULTS_RULES": str(self.path),
        }

    def set(self, *rules: tuple[Fault, int, int, str]) -> None:
        """
        Args:
            rules: operation, number of the error, how often (-1: always), and what it is of: a
                pattern of names below the root, or "#inode".
        """
        for mark in self.path.parent.glob(f"{self.path.name}.*"):
            mark.unlink()
        part = self.path.with_name(f"{self.path.name}-part")
        part.write_text("".join(f"{a} {b} {c} {d}\n" for a, b, c, d in rules))
        part.replace(self.path)

    def lose(self, path: Path, held: Path) -> None:
        """Have a file unreadable from now on, as where its sectors are lost.

        Args:
            held: a second name for it, outside of the root, so that no other gets its inode.
        """
        held.hardlink_to(path)
        self.set(("read", errno.EIO, -1, f"#{path.stat().st_ino}"))
