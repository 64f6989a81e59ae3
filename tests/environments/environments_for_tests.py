"""Environments that workers run in tests. No JAX in here: importing it would take a second."""

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlboost_jax.environments.protocol import Step, ToolCall, Turn
from rlboost_jax.environments.tools import tool


class Echo:
    """Says the text of each turn again, with the number of turns there were; ends at "end"."""

    def __init__(self, mark: str = "") -> None:
        self._mark, self._turns, self._seed = mark, 0, 0

    def reset(self, example: Mapping[str, Any], seed: int) -> str:
        self._seed = seed
        return f"{self._mark}{example['index']} {seed}"

    def step(self, turn: Turn) -> Step:
        self._turns += 1
        said = f"{self._seed} {self._turns} {turn.text}"
        return Step(observation=said, reward=0.5, done=turn.text == "end")


class Misbehaves:
    """Does what the text of a turn says. Else it says its process and its turns."""

    def __init__(self, log: str = "") -> None:
        self._turns = 0
        self.tools = {"note": tool(self.note, outcome=self.outcome)} if log else {}
        self._log = Path(log)

    def reset(self, example: Mapping[str, Any], seed: int) -> str:
        if example.get("once") and not Path(example["once"]).exists():
            Path(example["once"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "go on"

    def note(self, what: str, key: str) -> str:
        """Append a line."""
        with self._log.open("a") as file:
            file.write(f"{key} {what}\n")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"noted {what}"

    def outcome(self, key: str) -> str | None:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return next((f"noted {n}" for k, _, n in map(_parts, lines) if k == key), None)

    def calls(self, turn: Turn) -> Sequence[ToolCall]:
        if not turn.text.startswith("note"):
            return ()
        return [ToolCall(name="note", arguments={"what": w}) for w in turn.text.split()[1:]]

    def step(self, turn: Turn) -> Any:
        self._turns += 1
        match turn.text.split():
            case ["raise"]:
                raise LookupError("of mine")
            case ["exit"]:
                os._exit(3)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["crash"]:
                ctypes.string_at(0)
            case ["memory"]:
                return Step(observation=str(len(bytearray(2**31))))
            case ["hang"]:
                threading.Event().wait()
            case ["freeze"]:
                os.kill(os.getpid(), signal.SIGSTOP)
            case ["print"]:
                print("x" * 10**6, flush=True)
                os.write(2, b"x" * 10**6)
        said = " ".join(r.content for r in turn.results) or f"{os.getpid()} {self._turns}"
        return Step(observation=said)


def _parts(line: str) -> tuple[str, str, str]:
    key, _, what = line.partition(" ")
    return key, "", what


class Global:
    """Draws from the random state of its process, as some libraries do."""

    def reset(self, example: Mapping[str, Any], seed: int) -> str:
        random.seed(seed)
        return str(random.random())

    def step(self, turn: Turn) -> Step:
        return Step(observation=str(random.random()))


class Waiting:
    """Each turn takes a while, in which others have theirs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def reset(self, example: Mapping[str, Any], seed: int) -> Any:
        return np.array([seed, 2], np.int32)

    async def step(self, turn: Turn) -> Step:
        await asyncio.sleep(self._seconds)
        return Step(observation=np.array([turn.index, 4], np.int32))


class Blocking(Waiting):
    """The same, and nobody else has any."""

    async def step(self, turn: Turn) -> Step:
        time.sleep(10**6)
        return Step(done=True)


class Starts(Echo):
    """Starts a program that gets all files which may be handed on, as `os.system` does."""

    async def step(self, turn: Turn) -> Step:
        if turn.text == "sandbox":
            return Step(observation=os.environ["RLBOOST_SANDBOX"])
        if turn.text == "start":
            program = subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True)
            return Step(observation=f"started {program.pid}")
        await asyncio.sleep(10**6)
        return Step(done=True)


def fails(**options: Any) -> Any:
    raise ValueError(f"not with {options}")


def number() -> Any:
    return 3
