"""A trainer that something happens to at a named moment: `python -m tests.system.doomed`.

    python -m tests.system.doomed streaming:2:both -- --config=… --workdir=…

is `rlboost_jax.main` with a SIGKILL for its own process, its manager or both in the middle of
that phase of that step. It strikes once, from within, so that chance has no part in it.
"""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import app

from rlboost_jax import main as product
from rlboost_jax.learner import training
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.setup import preparation
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.settings.command_line import parse
from rlboost_jax.trust.run_files import read_record
from rlboost_jax.weights import snapshots
from tests.system.harness import Run

LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Fault:
    phase: str
    step: int
    victim: str  # "trainer", "manager" or "both"

    @classmethod
    def read(cls, text: str) -> "Fault":
        phase, step, victim = text.split(":")
        return cls(phase, int(step), victim)

    def __str__(self) -> str:
        return f"{self.phase}:{self.step}:{self.victim}"


class Fate:
    """Strikes when a moment comes that a fault names."""

    def __init__(self, faults: list[Fault], workdir: Path) -> None:
        self._faults, self._workdir, self._run = faults, workdir, Run(workdir)
        self._pace = Path(os.environ["RLBOOST_TEST_PACE"]) / "pace.json"
        self._free = self._pace.read_text()
        self.step = -1  # that the loop is in
        self.tokens_before = 0  # that the manager had of the trainer's own engine as it began
        self.sends_tokens = False  # that engine, now

    def due(self, phase: str, step: int) -> bool:
        return any((fault.phase, fault.step) == (phase, step) for fault in self._faults)

    def tokens(self) -> int:
        """Tokens that the manager has of the trainer's own engine, by its status."""
        instances = self._run.status().get("instances", [])
        return sum(each["tokens"] for each in instances if each["reserved"])

    def hold(self, version: int) -> None:
        """Have every engine wait after a few dispatches of a version, until it strikes."""
        values = {"hold": {"number": 0, "version": version, "dispatches": 3}}
        self._set(json.dumps(values))

    def _set(self, pace: str) -> None:
        """Engines read it all the time."""
        part = self._pace.with_suffix(".new")
        part.write_text(pace)
        part.replace(self._pace)

    def reach(self, phase: str, step: int) -> None:
        for fault in [f for f in self._faults if (f.phase, f.step) == (phase, step)]:
            self._faults.remove(fault)
            if phase == "seeding":
                self._set(self._free)
            if fault.victim in ("manager", "both"):
                record = read_record(self._workdir)
                assert record is not None
                os.kill(record.pid, signal.SIGKILL)
            if fault.victim in ("trainer", "both"):
                os.kill(os.getpid(), signal.SIGKILL)


def around(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] = lambda *_, **__: None,
    after: Callable[..., None] = lambda *_, **__: None,
) -> None:
    """Have functions called around another, with its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def arrange(fate: Fate) -> None:
    """The moments, in the order of a run."""

    def begun(loop: TrainingLoop, step: int) -> None:
        fate.step = step
        if fate.due("seeding", step):  # servers that are quick would leave nothing to do
            fate.tokens_before = fate.tokens()
            fate.hold(step)

    def sending(worker: EngineWorker) -> None:
        fate.sends_tokens = worker._unsent is not None

    def sent(worker: EngineWorker) -> None:
        """Strikes once the first tokens of a step have arrived."""
        if fate.sends_tokens and fate.due("seeding", fate.step):
            while fate.tokens() <= fate.tokens_before:
                time.sleep(LOOK_SECONDS)
            fate.reach("seeding", fate.step)

    def written(place: Path) -> None:  # snapshots/<version>
        fate.reach("publishing", int(place.name) - 1)

    around(preparation, "warm_up", after=lambda *_, **__: fate.reach("warm-up", 0))
    around(TrainingLoop, "step", before=begun)
    around(EngineWorker, "_send", before=sending, after=sent)
    around(PolicyPrograms, "accumulate", after=lambda *_: fate.reach("streaming", fate.step))
    around(
        BatchUpdate,
        "finish",
        before=lambda *_, **__: fate.reach("update", fate.step),
        after=lambda *_, **__: fate.reach("updated", fate.step),
    )
    around(snapshots, "_put_in_place", before=written)
    around(ManagerLink, "publish", before=lambda _, m: fate.reach("published", m.version - 1))
    around(ManagerLink, "trained", after=lambda *_: fate.reach("reported", fate.step))
    around(TrainingLoop, "save", before=lambda *_: fate.reach("row", fate.step))
    around(Checkpoints, "_finish", before=lambda _, step: fate.reach("checkpoint", step - 1))
    around(ManagerLink, "committed", before=lambda _, step: fate.reach("durable", step))
    around(training, "_summary", before=lambda *_: fate.reach("finish", fate.step))


if __name__ == "__main__":
    split = sys.argv.index("--")
    texts, sys.argv[1:] = sys.argv[1:split], sys.argv[split + 1 :]
    (folder,) = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
    arrange(Fate([Fault.read(text) for text in texts], Path(folder)))
    app.run(product.main, flags_parser=parse)
