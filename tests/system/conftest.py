"""The run that was left alone, which others are compared with. Nobody writes into it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shared import made_once
from tests.system.clocks import clock_of_our_own
from tests.system.harness import SHORT, Run, complete


@pytest.fixture(scope="session")
def short_and_calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the settings `SHORT`, with a fleet.

    Its programs are those of nearly all other runs: who asks for it compiles none of them again.
    """

    def make(folder: Path) -> None:
        complete(folder / "run", *SHORT)

    return Run(made_once(tmp_path_factory, "short_and_calm", make) / "run", *SHORT)


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """`set_clock(seconds)`: by which the clock of all that is started from now on is ahead."""
    with clock_of_our_own(tmp_path, monkeypatch) as set_clock:
        yield set_clock
