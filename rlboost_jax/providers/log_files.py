"""Logs of ended servers: their last lines, and removal of all but the newest files.

So a long run fills no disk.
"""

import contextlib
import os
from collections.abc import Container
from pathlib import Path
from typing import Final

KEPT: Final = 500  # files
LINES: Final = 12  # that stand with a loss
LETTERS: Final = 300  # of a line
TAIL_BYTES: Final = 2**14  # of a log, for its last lines


def last_lines(text: str, count: int = LINES) -> tuple[str, ...]:
    """Last lines that are not blank, as plain text: a terminal may show them."""
    plain = ("".join(c if c.isprintable() else " " for c in line) for line in text.splitlines())
    said = [line.strip()[:LETTERS] for line in plain if line.strip()]
    return tuple(said[-count:])


def tail_of(path: Path, count: int = LINES) -> tuple[str, ...]:
    """`last_lines` of a file, which may be long and growing; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return last_lines(file.read(TAIL_BYTES).decode(errors="replace"), count)
    except OSError:
        return ()


def remove_old_logs(folder: Path, servers: Container[str], kept: int = KEPT) -> None:
    """Remove all but the newest logs.

    Args:
        folder: of `<server>.log` files; `manager.log` and `zygote.log` stay.
        servers: that live.
    """
    ended: list[tuple[int, Path]] = []
    for path in folder.glob("*.log"):
        if path.stem not in servers and path.stem.partition(".")[0] not in ("manager", "zygote"):
            with contextlib.suppress(FileNotFoundError):
                ended.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(ended)[: max(0, len(ended) - kept)]:
        path.unlink(missing_ok=True)
