"""What a manager makes of a journal that its device cannot read any more: a latent sector error."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from rlboost_jax.manager.journal_entries import (
    BatchClosed,
    Entry,
    Forgotten,
    RunState,
    SegmentBegun,
)
from rlboost_jax.manager.service.journal_files import JournalFiles
from tests.manager.fakes import RUN
from tests.manager.test_journal_entries import collected, names, opened, reread, run_state


class Sectors(io.RawIOBase):
    """A file whose bytes from `lost` on cannot be read."""

    def __init__(self, path: Path, lost: int, number: int) -> None:
        self._file, self._lost, self._number = io.FileIO(path), lost, number

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._lost - self._file.tell()
        if left <= 0:
            raise OSError(self._number, os.strerror(self._number))
        return self._file.readinto(memoryview(buffer)[:left])

    def close(self) -> None:
        self._file.close()
        super().close()


def losing(step: int, at: int, number: int = errno.EIO) -> Callable[[Path], IO[bytes]]:
    """Opens segments; that of a step is lost from a byte on."""

    def open_to_read(path: Path) -> IO[bytes]:
        if f"-step-{step}." not in path.name:
            return open(path, "rb")
        return io.BufferedReader(Sectors(path, at, number), buffer_size=1)

    return open_to_read


def written(folder: Path) -> None:
    journal = JournalFiles(folder, RUN)
    journal.read()
    journal.append([opened(0), collected(0), run_state(1), BatchClosed(batch=0)])
    journal.append([opened(1), run_state(2), collected(1), collected(1, sample=1)])
    journal.close()


def size_of(folder: Path, step: int) -> int:
    return next(folder.glob(f"*-step-{step}.journal")).stat().st_size


def test_all_before_it_is_taken_and_the_line_names_the_file(tmp_path: Path) -> None:
    written(tmp_path)
    expected, _ = reread(tmp_path)
    lost = JournalFiles(tmp_path, RUN, opened=losing(1, size_of(tmp_path, 1) - 1))
    found, (damage,) = lost.read()
    assert found == expected[:-1]
    assert "-step-1.journal" in damage and "Input/output error" in damage


@pytest.mark.parametrize("at", [0, 1, 40])
def test_a_lost_beginning_costs_that_step_only(tmp_path: Path, at: int) -> None:
    written(tmp_path)
    lost = JournalFiles(tmp_path, RUN, opened=losing(1, at))
    found, (damage,) = lost.read()
    assert [entry.joined for entry in found if isinstance(entry, RunState)] == [1]
    assert "-step-1.journal" in damage


def test_nothing_is_written_behind_what_is_lost_until_a_step_opens(tmp_path: Path) -> None:
    """Nor to the segment before: that is read first, and would be taken for older."""
    written(tmp_path)
    sizes = [size_of(tmp_path, step) for step in range(2)]
    journal = JournalFiles(tmp_path, RUN, opened=losing(1, 40))
    journal.read()
    assert journal.append([run_state(7), collected(1, sample=2)]) == ""
    assert [size_of(tmp_path, step) for step in range(2)] == sizes
    assert journal.append([opened(2)]) == ""
    journal.close()
    assert len(names(tmp_path)) == 3 and names(tmp_path)[-1].startswith("00000003")
    again = JournalFiles(tmp_path, RUN, opened=losing(1, 40))
    states = [entry.joined for entry in again.read()[0] if isinstance(entry, RunState)]
    assert states[-1] == 7


def test_it_goes_once_a_later_one_says_what_still_holds(tmp_path: Path) -> None:
    written(tmp_path)
    journal = JournalFiles(tmp_path, RUN, opened=losing(1, 40))
    journal.read()
    journal.append([Forgotten(committed=0)])
    assert len(names(tmp_path)) == 2, "no other says what outlives a step"
    journal.append([opened(2), Forgotten(committed=1)])
    journal.close()
    (left,) = names(tmp_path)
    assert "-step-2." in left
    assert [type(e) for e in reread(tmp_path)[0]][:2] == [SegmentBegun, RunState]


def test_one_that_may_be_read_later_is_not_left_aside(tmp_path: Path) -> None:
    """No descriptor is left: that says nothing about the file."""
    written(tmp_path)
    for number in (errno.EMFILE, errno.ENOMEM, errno.ESTALE):
        journal = JournalFiles(tmp_path, RUN, opened=losing(1, 40, number))
        with pytest.raises(OSError, match="-step-1"):
            journal.read()
    found: list[Entry] = reread(tmp_path)[0]
    assert found[-1] == collected(1, sample=1)


def test_one_that_cannot_be_opened_now_is_not_left_aside_either(tmp_path: Path) -> None:
    written(tmp_path)

    def refused(path: Path) -> IO[bytes]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with pytest.raises(OSError, match="Too many open files"):
        JournalFiles(tmp_path, RUN, opened=refused).read()
    assert reread(tmp_path)[0][-1] == collected(1, sample=1)
