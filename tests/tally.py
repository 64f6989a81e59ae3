"""A pytest plugin that leaves what became of each test in a file, for `python -m tests`.

pytest -p tests.tally --tally=FILE
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass(eq=False)  # pytest keeps plugins in sets
class Tally:
    """What became of tests, by their ids.

    Attributes:
        seconds: of its phases together.
        outcomes: "passed", "failed" (in whichever phase), "skipped".
        reasons: of skips.
        workers: seconds of tests by the process that ran them, of several.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if worker := getattr(report, "worker_id", ""):
            self.workers[worker] += report.duration
        if report.failed or (report.skipped and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, report.outcome)
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails as a whole."""
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.outcomes[report.nodeid] = "skipped"
            self.reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def write(self, path: Path) -> None:
        content: dict[str, Any] = {
            "seconds": self.seconds,
            "outcomes": self.outcomes,
            "reasons": self.reasons,
            "workers": self.workers,
        }
        path.write_text(json.dumps(content))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", type=Path, help="file for what became of each test")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--tally")
    if path is not None and not hasattr(config, "workerinput"):
        tally = Tally()
        config.pluginmanager.register(tally, "tally")
        config.add_cleanup(lambda: tally.write(path))
