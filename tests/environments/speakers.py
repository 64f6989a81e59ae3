"""Environments of the service's tests, most of them in the small vocabulary."""

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlboost_jax.environments.protocol import Observation, Step, ToolCall, Turn
from rlboost_jax.environments.tools import tool


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Adder:
    """Says the total of all tokens so far, by a tool; is never done by itself."""

    def __init__(self) -> None:
        self._total = self._steps = 0
        self.tools = {"total": tool(self.total)}

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return ids(2, seed % 100, 3)

    def total(self, numbers: list[int]) -> int:
        """Add up."""
        return sum(numbers)

    def calls(self, turn: Turn) -> Sequence[ToolCall]:
        return [ToolCall(name="total", arguments={"numbers": list(turn.tokens)})]

    def step(self, turn: Turn) -> Step:
        self._total += int(turn.results[0].content)
        self._steps += 1
        metrics = {"solved": float(self._total), "steps": float(self._steps)}
        reward = 0.5 if turn.finish == "stop" else 0.25
        return Step(observation=ids(3, self._total, 3), reward=reward, metrics=metrics)


class Fails(Adder):
    def step(self, turn: Turn) -> Step:
        raise ZeroDivisionError("of mine")


class Draws(Adder):
    """One number alone is drawn twice in a row now and then."""

    def step(self, turn: Turn) -> Step:
        drawn = (random.SystemRandom().randrange(100) for _ in range(5))
        return Step(observation=ids(3, *drawn, 3))


class Long(Adder):
    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return ids(*([2] * 5000))


class Outside(Adder):
    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return ids(2, 999)


class NeverBegins(Adder):
    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        raise LookupError("no data here")


class BeginsTogether(Adder):
    """The first that is reset begins at once; of the others each waits for seven more."""

    _first = threading.Event()
    _others = threading.Barrier(8)

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        if not self._first.is_set():
            self._first.set()
        else:
            self._others.wait()
        return super().reset(example, seed)


class BeginsAllButOne(Adder):
    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        if example["index"] == 2:
            raise LookupError("no data here")
        return super().reset(example, seed)


class SpeaksText:
    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return "say a number"

    def step(self, turn: Turn) -> Step:
        if turn.text == "42":
            return Step(reward=1.0, done=True, metrics={"solved": 1.0})
        return Step(observation=f"you said {turn.text}")


class SpeaksForEver(SpeaksText):
    def step(self, turn: Turn) -> Step:
        return Step(observation="x" * 2**23, reward=0.5)


class Asks:
    """Asks the question of a row."""

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return f"tell me: {example['question']}"

    def step(self, turn: Turn) -> Step:
        return Step(reward=0.5, done=True)
