"""What stands under a cell, without a notebook; `tests/system/test_notebook.py` has a kernel."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs import base
from rlboost_jax.learner.notebook_run import run_shown
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.observe import notebook_console
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.observe.notebook_console import InterruptedCell, NotebookConsole, kernels_display
from rlboost_jax.observe.summary import summarize
from rlboost_jax.settings.config_loading import run_config
from tests.observe.conftest import row
from tests.patience import PATIENCE_SECONDS


class Page:
    """Everything that was shown, in order: (what, whether it took the place of what was there)."""

    def __init__(self) -> None:
        self.shown: list[tuple[dict[str, str], bool]] = []
        self.stuck = threading.Event()
        self.stuck.set()

    def __call__(self, bundle: Any, /, *, raw: bool, display_id: bool = False) -> "Page":
        assert raw
        self.shown.append((bundle, False))
        return self

    def update(self, bundle: Any, *, raw: bool) -> None:
        assert self.stuck.wait(PATIENCE_SECONDS)
        self.shown.append((bundle, True))


def test_one_output_is_drawn_anew_to_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_console, "CLOSE_SECONDS", PATIENCE_SECONDS)
    page = Page()
    with NotebookConsole(num_steps=4, output=page) as console:
        for number in range(30):
            console.note(f"line {number} <b>")
        for step in range(3):
            console.step(row(step))
    assert [updated for _, updated in page.shown] == [False] + [True] * (len(page.shown) - 1)
    last, _ = page.shown[-1]
    text = last["text/plain"].splitlines()
    assert text[0].startswith("█" * 24 + "░" * 8 + " 3/4 steps  reward ")
    assert text[1].startswith("step 2 (3/4)  reward 0.")
    assert text[3:] == [f"line {number} <b>" for number in range(14, 30)], "the newest 16"
    assert "&lt;b&gt;" in last["text/html"] and "<b>" not in last["text/html"]


def test_a_notebook_that_hangs_or_breaks_stops_nothing() -> None:
    page = Page()
    page.stuck.clear()
    console = NotebookConsole(num_steps=100, output=page)
    with console:
        for step in range(100):
            console.step(row(step))
        page.stuck.set()

    def broken(bundle: Any, /, **others: Any) -> Any:
        raise OSError("the kernel's socket is closed")

    with NotebookConsole(num_steps=1, output=broken) as console:
        console.step(row(0))


def test_a_run_shows_its_report_and_ends_in_a_line_when_interrupted(tmp_path: Path) -> None:
    run, page = run_config(base.get_config()), Page()
    summary = summarize([metrics_row(row(0))], reserved_price_per_hour=1.0)
    (tmp_path / "report.html").write_text("<p title='\"'>fine</p>")

    def done(run: Any, path: Any, world: Any, *, fork: str, makers: Any) -> Any:
        assert isinstance(makers.console(num_steps=3, live=True), NotebookConsole)
        return summary

    assert run_shown(run, tmp_path, ALONE, display=lambda: page, training=done) is summary
    ((bundle, _),) = page.shown
    assert 'srcdoc="&lt;p title=&#x27;&quot;&#x27;&gt;fine' in bundle["text/html"]
    assert bundle["text/plain"] == f"report: {tmp_path}/report.html"

    def interrupted(*arguments: Any, **others: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedCell) as caught:
        run_shown(run, tmp_path, ALONE, display=lambda: page, training=interrupted)
    assert caught.value._render_traceback_() == ["interrupted; the same call goes on with the run"]
    with pytest.raises(KeyboardInterrupt) as plain:
        run_shown(run, tmp_path, ALONE, display=lambda: None, training=interrupted)
    assert plain.type is KeyboardInterrupt


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(kernel=None)])
def test_outside_of_a_kernel_there_is_no_page(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in plain Python nor in IPython's own terminal."""
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython if shell else None)
    assert kernels_display() is None
