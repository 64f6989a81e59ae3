"""Whole episodes of a scripted policy, in a process of their own: what was said, for comparison.

Reads jobs as JSON and writes, for each, the first observation and all steps. A job names an
environment as `environment.name` does; its turns are played in order, again and again.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlboost_jax.environments.factories import maker_of
from rlboost_jax.environments.protocol import ToolCall, Turn
from rlboost_jax.environments.runner import EpisodeRunner, RememberedCalls
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = Path(__file__).parent / "plugins"
MOST_TURNS = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """An episode. A turn is a text, token ids, or {"text", "calls": [[name, arguments]]}."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    example: dict[str, Any] = field(default_factory=lambda: {"index": 1})
    seed: int = 1
    turns: Sequence[Any] = ("hello",)


async def played(job: Job, *, most_turns: int = MOST_TURNS) -> list[Any]:
    """Its observations, tools, rewards and metrics, until it is done or has had `most_turns`."""
    runner = EpisodeRunner(
        maker_of(job.name, job.options),
        ledger=RememberedCalls(),
        time_limit_seconds=PATIENCE_SECONDS,
    )
    try:
        said: list[Any] = [_plain(await runner.reset(job.example, job.seed))]
        said.append(sorted(runner.tools))
        for index in range(most_turns):
            turn = _turn(index, job.turns[index % len(job.turns)])
            stepped = (await runner.step(turn, key=f"turn-{index}")).step
            said.append(
                {
                    "observation": _plain(stepped.observation),
                    "reward": stepped.reward,
                    "done": stepped.done,
                    "metrics": dict(stepped.metrics),
                }
            )
            if stepped.done:
                break
        return said
    finally:
        await runner.close()


def transcripts(jobs: Sequence[Job], *, times: int = 1) -> list[list[Any]]:
    """Run the jobs `times` times, each in a fresh process, every second time in reverse order.

    Raises:
        AssertionError: a process failed, or said something else than the first one.
    """
    orders = [list(jobs) if turn % 2 == 0 else list(jobs)[::-1] for turn in range(times)]
    with ThreadPoolExecutor(times) as threads:
        answers = list(threads.map(_in_a_process, orders))
    first = answers[0]
    for turn, answer in enumerate(answers):
        for job, mine, other in zip(
            jobs, first, answer if turn % 2 == 0 else answer[::-1], strict=True
        ):
            assert mine == other, f"{job} does not repeat"
    return first


def _in_a_process(jobs: Sequence[Job]) -> list[list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.environments.adapters.transcript"],
        input=json.dumps([job.__dict__ for job in jobs]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_SECONDS,
        # As environments' processes have it (rlboost_jax/workers/worker_process.py).
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(_path())},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: list[list[Any]] = json.loads(done.stdout.rpartition("\n---\n")[2])
    return answer


def _path() -> list[str]:
    return [str(ROOT), str(ROOT / "kernels"), str(PLUGINS), *filter(None, sys.path)]


def _turn(index: int, said: Any) -> Turn:
    if isinstance(said, dict):
        calls = [ToolCall(name=name, arguments=a, id="c") for name, a in said.get("calls", ())]
        return Turn(index=index, tokens=(1,), text=said.get("text", ""), calls=tuple(calls))
    if isinstance(said, list):
        return Turn(index=index, tokens=tuple(said), text="")
    return Turn(index=index, tokens=(1,), text=said)


def _plain(observation: Any) -> Any:
    return observation.tolist() if isinstance(observation, np.ndarray) else observation


async def _all(jobs: Sequence[Job]) -> list[list[Any]]:
    return [await played(job) for job in jobs]


if __name__ == "__main__":
    answer = asyncio.run(_all([Job(**job) for job in json.load(sys.stdin)]))
    print("\n---\n" + json.dumps(answer))
