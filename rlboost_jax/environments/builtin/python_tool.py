"""Python interpreter: cells of an episode, each run in a process that can only compute.

Names live on from turn to turn as in a notebook, though no process does: a call runs the cells of
earlier turns that came to their end once more, without what they print, and then its own. So what
a cell sees follows from the turns alone, and an environment that is lost and made again needs no
more than them. Cells of one turn run side by side and do not see each other. A cell that raises or
takes too much leaves nothing behind.

What contains a cell is `workers/sandbox_child.py`: no network, no files but the interpreter's, no
other process, limits of memory, time and output.
"""

import functools
import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.environments.builtin import cells
from rlboost_jax.environments.protocol import Tool, Turn
from rlboost_jax.environments.tools import tool
from rlboost_jax.workers.sandbox import NotStarted, Ran, is_required, run_contained

NAME: Final = "python"
SECONDS: Final = 10.0  # of a call, the cells before it included
START_SECONDS: Final = 20.0  # that starting a process may take besides
MEMORY_MB: Final = 512
MOST_OUTPUT: Final = 4000  # characters that the policy reads
MOST_SOURCE: Final = 20_000  # characters of a cell
SILENT: Final = "(no output)"
_PROGRAM: Final = Path(cells.__file__).read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class CellLimits:
    seconds: float = SECONDS
    memory_mb: int = MEMORY_MB
    most_output: int = MOST_OUTPUT

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.memory_mb > 0 and self.most_output > 0):
            raise ValueError(f"{self} has limits of the tool 'python' that are not above 0")


class CellFailed(ValueError):
    """A cell that raised or took too much; the message is what the policy reads."""


class PythonTool:
    """The interpreter of one episode.

    `tool` runs cells; `remember` has to receive each turn, so that later cells see its names.

    Args:
        run: a cell after those before it → what became of it; None: contained.

    Raises:
        NotContained: this host cannot contain a cell. A run hears of it before its first step; a
            policy would read it as an answer.
    """

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        memory_mb: int = MEMORY_MB,
        most_output: int = MOST_OUTPUT,
        run: Callable[[Sequence[str], CellLimits], Ran] | None = None,
    ) -> None:
        self._limits = CellLimits(seconds=seconds, memory_mb=memory_mb, most_output=most_output)
        if run is None:
            _check_host()
        self._run = run or _contained
        self._cells: tuple[str, ...] = ()

    @property
    def tool(self) -> Tool:
        def python(code: str) -> str:
            """Run Python, and get what it prints and the value of its last line. Names stay."""
            return self._answer(code)

        # Idempotent, for it reaches nothing outside. A process may start late on a busy host.
        seconds = self._limits.seconds + START_SECONDS
        return tool(idempotent=True, time_limit_seconds=seconds)(python)

    def remember(self, turn: Turn) -> None:
        """Keep the completed cells of a turn."""
        good = (r.call for r in turn.results if r.call.name == NAME and not r.failed)
        self._cells += tuple(str(call.arguments["code"]) for call in good)

    def _answer(self, source: str) -> str:
        """Run a cell. Raises CellFailed, and NotContained or NotStarted if it could not be run."""
        if len(source) > MOST_SOURCE:
            raise CellFailed(f"the code has {len(source)} characters; {MOST_SOURCE} are possible")
        ran = self._run((*self._cells, source), self._limits)
        text = readable(ran.output, self._limits.most_output)
        if ran.completed:
            return text or SILENT
        if ran.timed_out:
            text += f"\nTimeoutError: not over in {self._limits.seconds:g} s"
        raise CellFailed(text.strip() or "the interpreter ended without a word; it took too much")


def readable(output: str, most: int) -> str:
    """Output without control characters, cut to about `most` characters."""
    if len(output) > most:
        half = most // 2
        dropped = len(output) - 2 * half
        output = f"{output[:half]}\n… {dropped} characters …\n{output[len(output) - half :]}"
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}"
        for c in output.rstrip()
    )


@functools.cache
def _check_host() -> None:
    """Check that cells can be contained here. Raises NotContained."""
    try:
        run_contained("", seconds=SECONDS, memory_mb=MEMORY_MB, required=is_required())
    except NotStarted:  # a busy host, or too little memory: nothing is known
        return


def _contained(sources: Sequence[str], limits: CellLimits) -> Ran:
    return run_contained(
        _PROGRAM,
        stdin=json.dumps(list(sources)),
        seconds=limits.seconds,
        memory_mb=limits.memory_mb,
        required=is_required(),
    )
