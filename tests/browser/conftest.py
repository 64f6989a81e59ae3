"""The page in a browser: `make test-browser`, and no part of any other lane.

Needs playwright, Debian's chromium and, for one test, axe-core; the make target installs them, the
first and the last into a folder of their own. Screenshots lie in RLBOOST_SCREENSHOTS, where that
is set.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.browser.runs import write_run
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("RLBOOST_AXE", "node_modules/axe-core/axe.min.js"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only who asks for this lane gets it."""
    return None if "browser" in (config.getoption("markexpr") or "") else True


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def until(page: Any, expression: str) -> None:
    """Look until it is so; `wait_for_function` would need a page that evaluates strings."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never: {expression}"
        page.wait_for_timeout(20)


def faults_of(page: Any) -> list[str]:
    """What axe finds serious."""
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{fault['id']}: {[node['html'][:200] for node in fault['nodes'][:3]]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


@dataclass
class Tab:
    """A page, and what went wrong in it."""

    page: Any
    faults: list[str] = field(default_factory=list)

    def shot(self, name: str) -> None:
        if folder := os.environ.get("RLBOOST_SCREENSHOTS"):
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Tab]]:
    """Makes a tab; at the end none may have had an error."""
    tabs: list[Tab] = []

    def make(width: int = 1400) -> Tab:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            ignore_https_errors=True,  # it does not know the run's authority
            bypass_csp=False,
        )
        context.set_default_timeout(1_000 * PATIENCE_SECONDS)
        made = Tab(context.new_page())
        tabs.append(made)

        def look(message: Any) -> None:
            if message.type in ("error", "warning"):
                made.faults.append(message.text)

        made.page.on("console", look)
        made.page.on("pageerror", lambda error: made.faults.append(str(error)))
        return made

    yield make
    for made in tabs:
        assert made.faults == []
        made.page.context.close()


@contextmanager
def serving(workdir: Path) -> Iterator[str]:
    """The address, with the token, of a process that serves a run."""
    command = [sys.executable, "-m", "rlboost_jax.cli.page", f"--workdir={workdir}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and "page/url" in process.stdout.readline()
            yield (workdir / "page" / "url").read_text().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 5,000 steps and the first hours of a day of its fleet."""
    return write_run(tmp_path_factory.mktemp("day") / "a-day", steps=5_000, hours=2)


@pytest.fixture(scope="session")
def address(day: Path) -> Iterator[str]:
    with serving(day) as url:
        yield url
