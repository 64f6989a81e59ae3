"""The disk under a simulated manager's journal: what is on the device, and what a power cut leaves.

Writes and names that were not synced are lost in part, in any order, and what was removed since
may be back. A misdirected write puts a sector where another was; that may hit anything.
"""

import errno
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlboost_jax.manager.journal_entries import Entry, RunState, read_segment
from rlboost_jax.manager.service.journal_files import JournalFiles

SECTOR = 512


class Platter:
    """
    Args:
        folder: of the journals, which are the only files in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._promised = (0, 0)
        self._gone: list[bytes] = []  # journals that are not in `_promised` yet
        self._synced: dict[str, int] = {}  # bytes of each file that are on the device
        self._named: set[str] = set()  # files whose names are
        self._removed: dict[str, bytes] = {}  # since the folder was synced

    @property
    def promised(self) -> tuple[int, int]:
        """Names given out, by hand and by the fleet, as journals say that are gone."""
        for data in self._gone:
            said = [e for e in read_segment(data).records if isinstance(e, RunState)][-1:]
            for state in said:
                by_hand, of_fleet = self._promised
                self._promised = (
                    max(by_hand, state.numbers),
                    max(of_fleet, state.fleet_numbers),
                )
        self._gone.clear()
        return self._promised

    def forget(self) -> None:
        """Forget the names that were given out, which a damaged disk cannot tell."""
        self._promised = (0, 0)
        self._gone.clear()

    def sync(self, path: Path) -> None:
        """A journal, and after that its folder, as `JournalFiles` has it."""
        self._synced[path.name] = path.stat().st_size
        self._named, self._removed = set(os.listdir(self.folder)), {}

    def removed(self, files: Mapping[Path, bytes]) -> None:
        """These are gone, but for their names until the folder is synced the next time."""
        for path, data in files.items():
            self._removed[path.name] = data
            self._gone.append(data)

    def cut(self, rng: random.Random) -> None:
        """The host loses its power, and has it again."""
        now = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        for name, data in sorted({**self._removed, **now}.items()):
            path, sure = self.folder / name, self._synced.get(name, 0)
            nameless = name in now and name not in self._named
            if (nameless and rng.random() < 0.3) or (name not in now and rng.random() < 0.5):
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(data[:sure] + _left(data[sure:], rng))
        self._named = set(os.listdir(self.folder))
        self._synced = {name: (self.folder / name).stat().st_size for name in self._named}
        self._removed = {}

    def misdirect(self, rng: random.Random) -> None:
        """A sector of some file is written over one of the same or of another."""
        files = [path for path in sorted(self.folder.iterdir()) if path.stat().st_size]
        if not files:
            return
        from_, to = rng.choice(files), rng.choice(files)
        sector = _sector(from_.read_bytes(), rng)[1]
        data = bytearray(to.read_bytes())
        at, before = _sector(data, rng)
        data[at : at + len(before)] = sector[: len(before)]
        to.write_bytes(data)
        self.forget()


class Disk(JournalFiles):
    """A journal that can run out of space in the middle of a frame."""

    full = False

    def __init__(self, platter: Platter, run_id: str) -> None:
        super().__init__(platter.folder, run_id, sync=platter.sync)
        self._platter = platter

    def _write(self, entries: Sequence[Entry]) -> None:  # type: ignore[override]
        if self.full and self._file is not None:
            os.write(self._file, b"\x40\x00\x00")
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(entries)

    def _remove(self, paths: Sequence[Path]) -> None:
        before = {path: path.read_bytes() for path in paths}
        self._take_away(paths)
        gone = {path: data for path, data in before.items() if not path.exists()}
        self._platter.removed(gone)

    def _take_away(self, paths: Sequence[Path]) -> None:
        super()._remove(paths)


def _left(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes that were not synced, at random."""
    match rng.randrange(5):
        case 0:
            return b""
        case 1:
            return bytes(len(data))
        case 2:
            return data[: rng.randint(0, len(data))]
        case 3:
            left = bytearray(data)
            for at in range(0, len(left), SECTOR):
                if rng.random() < 0.3:
                    left[at : at + SECTOR] = bytes(len(left[at : at + SECTOR]))
            return bytes(left)
    return data


def _sector(data: bytes | bytearray, rng: random.Random) -> tuple[int, bytes]:
    at = rng.randrange(0, len(data), SECTOR)
    return at, bytes(data[at : at + SECTOR])
