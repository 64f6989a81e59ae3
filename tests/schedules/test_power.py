"""Power cuts under random schedules, and a journal that is careless about them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.schedules.disk import Disk
from tests.schedules.faults import Run, schedule_of

WITHIN = 1000  # schedules


class Careless(Disk):
    """Removes what is committed at once, whether or not the next journal is on the device."""

    def _take_away(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._steps.pop(path)
            path.unlink()


def test_a_journal_removed_too_soon_is_found() -> None:
    with pytest.raises(AssertionError, match="names would be given twice"):
        for seed in range(1, 3 * WITHIN, 3):  # those with power cuts
            Run(schedule_of(seed), disk=Careless).finish()
