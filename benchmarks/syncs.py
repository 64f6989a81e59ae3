"""What a disk whose syncs are slow costs a step.

    python -m benchmarks.syncs --milliseconds=20 --turns=4

One run, with a checkpoint after every step. In turns of some steps each sync below its workdir, by
whatever process, takes so many milliseconds longer, or does not. `tests/powercut/recorder.c` does
that, which also says how many syncs there were, and by which threads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.observe.metrics import read_metrics
from tests.powercut.history import WORKDIR, History
from tests.powercut.operations import Kind, read_log
from tests.powercut.recording import Recording, prepare

LOOK_SECONDS = 0.01
FIRST = 2  # steps that are left out: the window is being found


def command(config: str, workdir: Path, steps: int) -> list[str]:
    settings = (
        *(f"num_steps={steps}", "checkpoint.every_steps=1", "evaluation.every_steps=0"),
        *("fleet.chaos.enabled=False", "fleet.max_instances=1", "warmup.max_updates=6"),
        *("warmup.habit_updates=2", "observe.trackers=()", "observe.live=False"),
    )
    return [
        *(sys.executable, "-m", "rlboost_jax.main", f"--config={config}", f"--workdir={workdir}"),
        *(f"--config.{setting}" for setting in settings),
    ]


def measured(
    recording: Recording, config: str, *, milliseconds: int, turns: int, steps: int
) -> dict[str, Any]:
    """Step seconds of both kinds of turns, each without its first step."""
    workdir, slow, seen = recording.root / WORKDIR, dict[int, bool](), 0
    total = FIRST + 2 * turns * steps
    with subprocess.Popen(
        command(config, workdir, total),
        env={**os.environ, **recording.environment},
        stdout=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            seen = len(read_metrics(workdir))
            turn = max(0, seen - FIRST) // steps
            slow[seen] = turn % 2 == 1  # the step that is under way
            recording.slow_down(milliseconds if slow[seen] else 0)
            time.sleep(LOOK_SECONDS)
    assert process.returncode == 0, "the run has failed"
    rows = read_metrics(workdir)
    kinds: dict[bool, list[float]] = {False: [], True: []}
    for row in rows[FIRST:]:
        step = row["step"]
        if slow.get(step) == slow.get(step - 1):  # else it has begun in the turn before
            kinds[slow[step]].append(row["step_seconds"])
    operations = read_log(recording.log)
    waited = History(operations, recording.root).waited_for()
    quick, slowed = statistics.median(kinds[False]), statistics.median(kinds[True])
    return {
        "step_seconds": quick,
        "step_seconds_slow": slowed,
        "ratio": slowed / quick,
        "steps": [len(kinds[False]), len(kinds[True])],
        "syncs_per_step": sum(o.kind is Kind.SYNC for o in operations) / len(rows),
        "syncs_waited_for": len(waited),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.syncs", description=__doc__)
    parser.add_argument("--milliseconds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4, help="of each kind")
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--config", default="configs/quickstart.py")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(
            prepare(Path(folder) / "recorded"),
            chosen.config,
            milliseconds=chosen.milliseconds,
            turns=chosen.turns,
            steps=chosen.steps,
        )
    print(
        f"a step takes {found['step_seconds']:.3f} s, and {found['step_seconds_slow']:.3f} s where "
        f"each sync takes {chosen.milliseconds} ms longer: ratio {found['ratio']:.3f}; "
        f"{found['syncs_per_step']:.0f} syncs a step, {found['syncs_waited_for']} of them by "
        "threads that steps wait for"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
