"""Logs of servers that have ended: the newest are kept, so that a long run fills no disk."""

import contextlib
from collections.abc import Container
from pathlib import Path
from typing import Final

KEPT: Final = 500  # files


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
