"""Output of a run in a notebook: one output that is redrawn as it goes, and the report.

`rlboost_jax.main.train` uses it where it is called in a kernel. Nothing here waits for the
notebook: what the run says is put down, and a thread shows the newest of it.
"""

import contextlib
import html
import io
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self, runtime_checkable

from rlboost_jax.observe.console import Console, step_line
from rlboost_jax.observe.html_report import FILE
from rlboost_jax.observe.live_view import spark

LINES: Final = 16  # of what was said last
EVERY_SECONDS: Final = 0.5  # between two drawings, at least
CLOSE_SECONDS: Final = 5.0  # for the last one
HISTORY: Final = 48  # steps in the line of bars
BAR: Final = 32  # characters

Bundle = dict[str, str]  # what is shown, by MIME type


@runtime_checkable
class DisplayFunction(Protocol):
    """Part of `IPython.display.display` that is needed here."""

    def __call__(self, bundle: Bundle, /, *, raw: bool, display_id: bool = False) -> Any: ...


class InterruptedCell(KeyboardInterrupt):
    """The kernel was interrupted; the notebook shows a line for it and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted; the same call goes on with the run"]


def kernels_display() -> DisplayFunction | None:
    """Display function of the notebook whose kernel this process is; None if it is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    output: DisplayFunction = display
    return output


class NotebookConsole(Console):
    """A console whose lines stand in one output under the cell, the newest below.

    Args:
        output: shows it; asked from a thread of its own.
    """

    def __init__(self, *, num_steps: int, output: DisplayFunction, live: bool = True) -> None:
        self._said = _Lines(LINES)
        super().__init__(num_steps=num_steps, live=False, file=self._said)
        self._total, self._output = num_steps, output
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._last: Mapping[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="notebook", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return super().__enter__()

    def close(self) -> None:
        self._over.set()
        self._said.changed.set()
        self._thread.join(CLOSE_SECONDS)
        super().close()

    def step(self, row: Mapping[str, Any]) -> None:
        self._rewards.append(row.get("reward_mean") or 0.0)
        self._last = row
        self._said.changed.set()

    def bundle(self) -> Bundle:
        """The console's whole content as it is now."""
        lines = [self._progress(), *([step_line(self._last, self._total)] if self._last else [])]
        text = "\n".join([*lines, "", *self._said.newest()])
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}

    def _progress(self) -> str:
        done = self._last["step"] + 1 if self._last else 0
        filled = BAR * done // max(1, self._total)
        bar = "█" * filled + "░" * (BAR - filled)
        return f"{bar} {done}/{self._total} steps  reward {spark(list(self._rewards))}"

    def _draw(self) -> None:
        """Draw the output, ignoring whatever the notebook raises."""
        with contextlib.suppress(Exception):
            handle = self._output(self.bundle(), raw=True, display_id=True)
            while not self._over.is_set():
                self._said.changed.wait()
                self._said.changed.clear()
                handle.update(self.bundle(), raw=True)
                self._over.wait(EVERY_SECONDS)
            handle.update(self.bundle(), raw=True)


def show_report(workdir: str | Path, output: DisplayFunction) -> None:
    """Show the run's report in a frame under the cell; whole, so that a copy shows it too."""
    path = Path(workdir) / FILE
    page = html.escape(path.read_text("utf-8"), quote=True)
    frame = f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'
    output({"text/plain": f"report: {path}", "text/html": frame}, raw=True)


class _Lines(io.StringIO):
    """The last lines that were written."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._kept: deque[str] = deque(maxlen=count)
        self._open = ""
        self.changed = threading.Event()

    def write(self, text: str) -> int:
        *whole, self._open = (self._open + text).split("\n")
        self._kept.extend(whole)
        self.changed.set()
        return len(text)

    def newest(self) -> list[str]:
        return list(self._kept.copy())
