"""The page of a run whose servers are being killed, while it runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.events_file import read_events
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.page.points import SHOWN
from tests.browser.conftest import ROOT, Tab, until
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.browser
KILL_SECONDS = 2.0  # until it is seen
KILLS = 3
PATIENCE = 1_000 * PATIENCE_SECONDS

# When the page first showed that an instance was lost, in seconds since the epoch.
WATCH = """
window.seen = {};
new MutationObserver(() => {
  for (const mark of document.querySelectorAll('#fleet [data-ending=killed]')) {
    window.seen[mark.dataset.instance] ??= Date.now() / 1000;
  }
}).observe(document.getElementById('panels'), {childList: true, subtree: true});
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run under chaos."""
    workdir = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "rlboost_jax.main", "--config=configs/tiny.py"),
        *(f"--workdir={workdir}", "--config.num_steps=1000"),
        *("--config.fleet.chaos.enabled=True", "--config.fleet.chaos.kills_per_minute=6"),
        "--config.observe.samples_every_steps=2",
    ]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield workdir
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def waited(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (value := found()):
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.05)
    return value


def test_values_are_those_of_the_file_and_kills_are_seen_at_once(
    run: Path, tab: Callable[..., Tab]
) -> None:
    url = waited((run / "page" / "url").exists, "page") and (run / "page" / "url").read_text()
    made = tab()
    page = made.page
    page.goto(url.strip())
    page.wait_for_selector("#fleet", state="attached", timeout=PATIENCE)
    page.evaluate(WATCH)
    until(page, "live.points.length >= 3")

    delays = []
    for _ in range(KILLS):
        name, pid = waited(lambda: victim(run), "server to kill")
        struck = time.time()
        os.kill(pid, signal.SIGKILL)
        until(page, f"window.seen['{name}']")
        delays.append(page.evaluate(f"window.seen['{name}']") - struck)
    print("kills were seen after", [f"{delay:.2f} s" for delay in delays])
    made.shot("live-1400")

    columns, legend = page.evaluate(
        "[live.points.columns, [...document.querySelectorAll('#learning b, #waits b')]"
        ".map((b) => [b.dataset.key, b.dataset.value])]"
    )
    rows = {row["step"]: row for row in read_metrics(run)}
    assert len(columns["step"]) >= 3
    for place, step in enumerate(columns["step"]):
        for key in SHOWN:
            assert columns.get(key, [None] * len(rows))[place] == rows[step][key], (key, step)
    for key, value in legend:
        if key in SHOWN and value:
            assert float(value) in {row[key] for row in rows.values()}, key
    spent = sum(rows[step]["cost_dollars"] for step in columns["step"])
    assert columns["spent_dollars"][-1] == pytest.approx(spent)
    assert max(delays) < KILL_SECONDS


def victim(run: Path) -> tuple[str, int] | None:
    """A server that is ready and lives: its name and process."""
    nonces: dict[str, str] = {}
    ready: dict[str, None] = {}
    for event in read_events(run):
        name = event["instance"]
        if event["kind"] == "joined":
            nonces[name] = event["detail"]["nonce"]
        elif event["kind"] == "ready" and name in nonces:
            ready[name] = None
        elif event["kind"] in ("lost", "drained", "notice"):
            ready.pop(name, None)
    pids = {}
    for path in (run / "servers").glob("*"):
        with contextlib.suppress(OSError, ValueError):  # it ends, or begins, just now
            note = json.loads(path.read_text())
            pids[note["nonce"]] = note["pid"]
    alive = [(name, pids[nonces[name]]) for name in ready if nonces[name] in pids]
    return alive[-1] if alive else None
