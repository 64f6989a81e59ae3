"""An environment whose policy may use a calculator, which notes each call in a file.

A turn with digits in it calls `add`, which says their sum; any other ends the episode, and so does
the third. `<log>` has a line for each call that was carried out. With a file `<log>.hold` of n
bytes each step after n calls makes `<log>.asked` and waits until the first is gone, or has more
bytes than there are calls.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlboost_jax.data.vocabulary import BEGIN, EQUALS, digit
from rlboost_jax.environments.protocol import Observation, Step, ToolCall, Turn
from rlboost_jax.environments.tools import tool

LOOK_SECONDS = 0.01
TURNS = 3


class Calculator:
    """
    Args:
        log: file of calls; "": none.
        seconds: that a call takes.
    """

    def __init__(self, log: str = "", seconds: float = 0.0) -> None:
        self._log, self._seconds = Path(log) if log else None, seconds
        self.tools = {"add": tool(self.add, outcome=self.outcome)}

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return _tokens(BEGIN, *_digits(seed % 1000), EQUALS)

    def calls(self, turn: Turn) -> Sequence[ToolCall]:
        numbers = [token - digit(0) for token in turn.tokens if 0 <= token - digit(0) < 10]
        return [ToolCall(name="add", arguments={"numbers": numbers})] if numbers else []

    def step(self, turn: Turn) -> Step:
        if self._log is not None:
            hold = self._log.with_name(f"{self._log.name}.hold")
            while len(self._lines()) >= _bytes(hold):
                hold.with_suffix(".asked").touch()
                time.sleep(LOOK_SECONDS)
        reward = len(turn.tokens) % 7 / 7 + 0.1 * turn.index
        if not turn.results or turn.index == TURNS - 1:
            return Step(reward=reward, done=True, metrics={"solved": float(turn.index > 0)})
        total = int(turn.results[0].content)
        return Step(observation=_tokens(EQUALS, *_digits(total), EQUALS), reward=reward)

    def add(self, numbers: list[int], key: str) -> str:
        """Add numbers up."""
        total = str(sum(numbers))
        time.sleep(self._seconds)
        if self._log is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            file = os.open(self._log, flags, 0o666)
            os.write(file, f"{key} {total}\n".encode())
            os.close(file)
        return total

    def outcome(self, key: str) -> str | None:
        lines = (line.split() for line in self._lines())
        return next((result for name, result in lines if name == key), None)

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log and self._log.exists() else []


def _bytes(path: Path) -> float:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return math.inf


def _digits(number: int) -> list[int]:
    return [digit(int(d)) for d in str(number)]


def _tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)
