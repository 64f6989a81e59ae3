"""What one kill in the middle of a step costs, with engines that are clocks.

    python -m benchmarks.kill [--kills=7] [--json=FILE]    (from the repository root)

Processes, streams and the manager are the real ones; see `loop.py`. All generating is left to
instances of a set rate, and the learner takes no time, so that a step is as long as its slowest
instance. The same steps run twice: undisturbed, and with an instance killed (SIGKILL) half-way and
replaced after the step. A liquid would lose the dead instance's share of the rest, nothing else:

    T' = t + (T - t) · n / (n - 1)

On top come the time until the kill is known and the prefill of what moves. Rows: rollouts go on
from the tokens collected, and, as most systems do it, begin anew.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

if __package__ in (None, ""):  # started as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.nursery import Nursery
from benchmarks.stand_in import StandIn
from benchmarks.trainer import StandInTrainer, StepTime
from configs import base
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.settings.run_config import RunConfig

GROUP = 8
INSTANCES = 4
RATE = 4_000.0  # tokens per second of an instance
PREFILL_RATE = 40_000.0
SERVER = StandIn(
    rate=RATE,
    slots=8,
    steps=8,
    samples=512,
    mean=128.0,
    longest=512,
    prefill_rate=PREFILL_RATE,
)
NO_TIME = 1e9  # tokens per second of a learner that is never waited for


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One pair of steps. Seconds."""

    calm: float
    killed: float
    at: float  # from the step's begin
    detection: float
    prefill: float  # of what was generated or given again, on all instances
    tokens_lost: int

    @property
    def fluid(self) -> float:
        """Longer by that much would the step of a liquid be."""
        return max(0.0, self.calm - self.at) / (INSTANCES - 1)

    @property
    def increase(self) -> float:
        return self.killed - self.calm


def settings(migration: bool) -> RunConfig:
    config = base.get_config()
    config.learner.prompts_per_step = SERVER.samples // GROUP
    config.learner.micro_batch_prompts = 8
    config.algorithm.group_size = GROUP
    config.sampling.max_response_tokens = SERVER.longest
    config.manager.seeding = False
    config.manager.migration = migration
    config.fleet.provider = "none"
    return run_config_from_dict(config.to_dict())


def measure(migration: bool, steps: int) -> list[Kill]:
    calm = _steps(migration, steps, kill_at=None)
    half = [took.seconds / 2 for took, _ in calm]
    return [
        Kill(
            calm=undisturbed.seconds,
            killed=took.seconds,
            at=at - took.began,
            detection=detected - at,
            prefill=took.prefilled_again / PREFILL_RATE / (INSTANCES - 1),
            tokens_lost=took.tokens_lost,
        )
        for (undisturbed, _), (took, (at, detected)) in zip(
            calm, _steps(migration, steps, kill_at=half), strict=True
        )
    ]


def _steps(
    migration: bool, steps: int, kill_at: list[float] | None
) -> list[tuple[StepTime, tuple[float, float]]]:
    """Each step, and when a kill happened and was known, seconds since the epoch."""
    run = settings(migration)
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_run_config(workdir / "config.json", run, "benchmark")
        trainer = StandInTrainer(run, workdir, SERVER, train_rate=NO_TIME)
        nursery = Nursery(SERVER, trainer.address, workdir / "join", workdir)
        try:
            for number in range(INSTANCES):
                nursery.start(f"machine-{number}")
            trainer.wait_for(INSTANCES)
            trainer.step(0)  # the first one settles
            found = []
            for number in range(steps):
                if kill_at is None:
                    found.append((trainer.step(number + 1), (0.0, 0.0)))
                    continue
                found.append(_killed_step(trainer, nursery, workdir, number, kill_at[number]))
                nursery.start(f"machine-{INSTANCES + number}")
                trainer.wait_for_fleet(INSTANCES)
            return found
        finally:
            trainer.close()
            nursery.close()


def _killed_step(
    trainer: StandInTrainer, nursery: Nursery, workdir: Path, number: int, seconds: float
) -> tuple[StepTime, tuple[float, float]]:
    victim = f"machine-{number}"
    at: list[float] = []

    def kill() -> None:
        at.append(time.time())
        nursery.kill(victim)

    timer = threading.Timer(seconds, kill)
    timer.start()
    took = trainer.step(number + 1)
    timer.join()
    lost = [e for e in read_events(workdir) if (e["kind"], e["instance"]) == ("lost", victim)]
    return took, (at[0], lost[0]["time"])


def line(name: str, kills: list[Kill]) -> str:
    def median(values: list[float]) -> float:
        return float(np.median(values))

    increase = median([k.increase for k in kills])
    fluid = median([k.fluid for k in kills])
    known = median([k.detection + k.prefill for k in kills])
    excess = median([k.increase - k.fluid for k in kills])
    return (
        f"{name:<10} {median([k.calm for k in kills]):7.3f} {increase:9.3f} {fluid:7.3f} "
        f"{excess:7.3f} {known:10.3f} {increase / (fluid + known):6.2f} "
        f"{median([k.tokens_lost for k in kills]):7.0f}"
    )


HEADER = (
    f"{'rollouts':<10} {'calm s':>7} {'longer s':>9} {'fluid':>7} {'excess':>7} "
    f"{'det.+pref.':>10} {'ratio':>6} {'lost':>7}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args()
    print(
        f"{INSTANCES} instances of {RATE:g} tokens/s, prefill {PREFILL_RATE:g}; "
        f"{SERVER.samples} responses of {SERVER.mean:g} tokens on average; medians of "
        f"{options.kills} kills half-way\n"
        "longer: than the undisturbed step; fluid: what a liquid would be; excess: above that; "
        "det.+pref.: detection and prefill of what moved; ratio: longer / (fluid + det.+pref.)\n"
    )
    print(HEADER, flush=True)
    results = {}
    for name, migration in (("go on", True), ("anew", False)):
        results[name] = measure(migration, options.kills)
        print(line(name, results[name]), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: [asdict(kill) for kill in kills] for name, kills in results.items()}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
