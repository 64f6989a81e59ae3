"""A file of lines that another process appends to or replaces."""

import os
from pathlib import Path
from typing import IO, Final

from rlboost_jax.observe.json_lines import LONGEST_LINE
from rlboost_jax.platform.bounded_files import Unreadable, open_regular
from rlboost_jax.platform.closing import Closing

CHUNK_BYTES: Final = 2**22  # read at a time: one look holds up nobody for long


class FileTail(Closing):
    """The lines of a file, each once, in order. One look reads at most `CHUNK_BYTES`.

    A file that is replaced (a run that goes on writes `metrics.jsonl` anew) or that became
    shorter is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._offset = 0  # of the first byte that is no whole line yet
        self.replaced = 0  # how often the file was

    def lines(self) -> list[tuple[int, bytes]]:
        """Lines since the last look, as (offset, line without its end)."""
        self._open()
        if self._file is None:
            return []
        self._file.seek(self._offset)
        read = self._file.read(CHUNK_BYTES)
        found, begin = [], 0
        while (end := read.find(b"\n", begin)) >= 0:
            found.append((self._offset + begin, read[begin:end]))
            begin = end + 1
        if not begin and len(read) == CHUNK_BYTES:
            return self._long_line()
        self._offset += begin
        return found

    @property
    def behind(self) -> bool:
        """Whether another look would find more at once."""
        if self._file is None:
            return False
        return os.fstat(self._file.fileno()).st_size - self._offset >= CHUNK_BYTES

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        try:
            there = os.stat(self._path)
        except OSError:  # not there yet, or being replaced
            return
        if self._file is not None:
            known = os.fstat(self._file.fileno())  # open, so that its number is not used again
            same = (known.st_ino, known.st_dev) == (there.st_ino, there.st_dev)
            if same and known.st_size >= self._offset:
                return
            self.close()
            self.replaced += 1
        try:
            self._file = open(open_regular(self._path), "rb")  # noqa: SIM115  (until `close`)
        except (OSError, Unreadable):
            return
        self._offset = 0

    def _long_line(self) -> list[tuple[int, bytes]]:
        assert self._file is not None
        self._file.seek(self._offset)
        line = self._file.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            if len(line) == LONGEST_LINE:
                self._offset += len(line)  # what is left of it is no JSON, and passed over, too
            return []
        begin, self._offset = self._offset, self._offset + len(line)
        return [(begin, line[:-1])]
