"""drawers: follow notes from drawer to drawer, and say the digit in the last one.

A tool, `look(drawer)`, opens a drawer: there is the number of another one in it, a digit, or
nothing. What is in which follows from the episode's seed, so nobody can know it without looking;
a guess is right one time in ten.

Written in the tokens of `data/vocabulary.py`, for models that are trained from scratch:

    <begin> [start] =    [start] <end>    [next] =    [next] <end>    7 =    # 7 <end>

A turn `[k] <end>` looks, a turn `# d <end>` answers and ends the episode, and any other ends it
without a reward. Or written as text, for models that can read.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.chat.conversation import answers
from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS, counter, digit
from rlboost_jax.environments.protocol import Observation, Step, Tool, ToolCall, Turn
from rlboost_jax.environments.tools import tool
from rlboost_jax.settings.task_sizes import FIRST_COUNTER, NUM_COUNTERS

Form = Literal["tokens", "text"]

EMPTY: Final = "nothing"  # what is in most drawers
NOTHING: Final = 0  # its token
QUESTION: Final = (
    "A digit is hidden in one of {drawers} drawers. Drawer {start} is where to begin: there is the "
    "digit in it, or the number of the drawer to open next. Look into drawers, then say the digit "
    "and nothing else."
)


class Drawers:
    """The environment, with its tool.

    Args:
        mean_notes: drawers with a note before the one with the digit, on average; the number is
            geometric.
        most_notes: at most so many.
        form: of what is said.
        log: file to which each look appends a line with its call's key; "": none. It makes the
            tool one that must not be called twice, and can be asked what came of a call.
    """

    def __init__(
        self, mean_notes: float = 1.0, most_notes: int = 4, form: str = "tokens", log: str = ""
    ) -> None:
        if mean_notes < 0 or not 0 <= most_notes < NUM_COUNTERS - 1:
            raise ValueError(
                f"mean_notes {mean_notes} and most_notes {most_notes}; choose 0 or more, and at "
                f"most {NUM_COUNTERS - 2} notes"
            )
        if form not in ("tokens", "text"):
            raise ValueError(f"form {form!r} is neither 'tokens' nor 'text'")
        self._mean, self._most, self._in_text = mean_notes, most_notes, form == "text"
        self._log = Log(Path(log)) if log else None
        self._contents: dict[int, str] = {}
        self._start, self._digit = 0, 0
        self._seen = ""  # what was found last; for demonstrations
        self.tools = {"look": self._tool()}

    def reset(self, example: Any, seed: int) -> Observation:
        rng = np.random.default_rng([seed, int(example["index"])])
        notes = min(self._most, int(rng.geometric(1 / (1 + self._mean))) - 1)
        path = [int(k) for k in rng.permutation(NUM_COUNTERS)[: notes + 1]]
        self._start, self._digit = path[0], int(rng.integers(10))
        self._contents = {k: f"drawer {after}" for k, after in itertools.pairwise(path)}
        self._contents[path[-1]] = str(self._digit)
        self._seen = f"drawer {self._start}"
        if self._in_text:
            return QUESTION.format(drawers=NUM_COUNTERS, start=self._start)
        return _tokens(BEGIN, counter(self._start), EQUALS)

    def calls(self, turn: Turn) -> Sequence[ToolCall]:
        """Tool calls of a turn in tokens; those of a text turn are parsed already."""
        if self._in_text:
            return turn.calls
        match turn.tokens:
            case (drawer, end) if end == END and 0 <= drawer - FIRST_COUNTER < NUM_COUNTERS:
                return (ToolCall(name="look", arguments={"drawer": drawer - FIRST_COUNTER}),)
        return ()

    def step(self, turn: Turn) -> Step:
        if turn.results:
            self._seen = turn.results[-1].content
            return Step(observation=self._said(turn))
        right = (
            turn.text.strip() == str(self._digit)
            if self._in_text
            else turn.tokens == (ANSWER, digit(self._digit), END)
        )
        return Step(reward=float(right), done=True, metrics={"solved": float(right)})

    def demonstration(self, rng: np.random.Generator, worked: bool) -> str | NDArray[np.int32]:
        """The next turn of an expert, who looks into every drawer, or of a guesser."""
        found = self._seen.removeprefix("drawer ")
        look = worked and found != self._seen
        answer = found if worked else str(rng.integers(10))
        if self._in_text:
            return f'{{"name": "look", "arguments": {{"drawer": {found}}}}}' if look else answer
        return (
            _tokens(counter(int(found)), END) if look else _tokens(ANSWER, digit(int(answer)), END)
        )

    def _tool(self) -> Tool:
        if self._log is None:
            return tool(self.look, name="look", idempotent=True)
        return tool(self._logged, name="look", outcome=self._log.outcome)

    def look(self, drawer: int) -> str:
        """Say what is in a drawer."""
        return self._contents.get(drawer, EMPTY)

    def _logged(self, drawer: int, key: str) -> str:
        """Say what is in a drawer."""
        found = self.look(drawer)
        if self._log is not None and key:
            self._log.note(key, found)
        return found

    def _said(self, turn: Turn) -> Observation:
        if self._in_text:
            return answers(turn.results)
        return _tokens(_token_of(self._seen), EQUALS)


class Log:
    """File of call keys and results; each line is appended in one piece and never changed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, key: str, result: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o666)
        try:
            os.write(file, f"{key}\t{result}\n".encode())
        finally:
            os.close(file)

    def outcome(self, key: str) -> str | None:
        """Result of a call that was carried out; None if it never was."""
        if not self._path.exists():
            return None
        for line in self._path.read_text(encoding="utf-8").splitlines():
            noted, _, result = line.partition("\t")
            if noted == key:
                return result
        return None


def _token_of(content: str) -> int:
    """Token for the content of a drawer."""
    number = content.removeprefix("drawer ")
    if not number.isdecimal():
        return NOTHING
    return digit(int(number)) if number == content else counter(int(number))


def _tokens(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)
