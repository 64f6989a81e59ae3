"""Dates of events when somebody sets the clock."""

from pathlib import Path
from typing import Any

from rlboost_jax.manager.events import Record, Shutdown
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.service.wall_clock import WallClock
from tests.manager.fakes import settings

YEAR = 365 * 86_400.0


def test_what_passed_between_two_dates_is_what_passed() -> None:
    steady, wall = 100.0, 2e9
    dates = WallClock(lambda: steady, lambda: wall)
    assert dates.now() == 2e9
    for step, jump in ((1.0, YEAR), (2.0, -3 * YEAR), (0.5, 0.0)):
        before = dates.now()
        steady, wall = steady + step, wall + step + jump
        assert dates.now() - before == step


def test_events_bear_such_dates(run: Any, tmp_path: Path) -> None:
    wall = iter([2e9, 2e9 + YEAR, 2e9 - YEAR])
    dates = WallClock(lambda: 7.0, lambda: next(wall))
    seen: list[float] = []

    def record(date: float, line: Record) -> None:
        seen.append(date)

    async def story() -> None:
        driver = Driver(Manager(settings()), record, date=dates.now)
        for kind in ("a", "b"):
            driver._perform(Record(kind, -1, "", {}))
        driver.apply(Shutdown("over"))
        await driver.close()

    run(story())
    assert set(seen) == {2e9}
