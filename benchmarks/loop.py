"""How near the loop comes to its fluid bound, with engines that are clocks.

    python -m benchmarks.loop [--instances=0,1,2,4,8] [--json=FILE]    (from the repository root)

The manager, the streams, the workers, the learner's stream of micro-batches and the seeding
window are the real ones, in real processes; only sampling (`stand_in.py`) and gradients (a
sleep) take a set time. Printed for each fleet size, calm and with servers killed and
replaced by the synthetic trace: mean time of the last steps, the bound (`fluid.py`) in the
same conditions, their ratio, and the seeding window of each step. Under churn the bound is
a clairvoyant's: it knows when each instance will come and go.
"""

import argparse
import json
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

if __package__ in (None, ""):  # started as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fluid import step_bound
from benchmarks.nursery import Nursery, play
from benchmarks.stand_in import StandIn, response_lengths
from benchmarks.trainer import StandInTrainer, StepTime
from configs import base
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.settings.run_config import RunConfig

GROUP, MICRO_BATCH = 8, 2
STEP_TOKENS = 65_536  # on average
INSTANCE_RATE = 4_000.0  # tokens per second
RESERVED_RATE = 4 * INSTANCE_RATE  # eight devices beside instances of two
TRAIN_RATE = 42_000.0  # tokens per second
LIFETIME_SECONDS, GAP_SECONDS = 20.0, 5.0  # of an instance under churn, on average
SETTLING = 5  # first steps, in which the window is being found: not in the means


@dataclass(frozen=True, kw_only=True)
class Result:
    """One fleet size, calm or under churn; a value per step."""

    instances: int
    churn: bool
    seconds: list[float]
    bounds: list[float]
    windows: list[float]
    best_windows: list[float]  # the bound's
    train_waits: list[float]
    remote_waits: list[float]
    instances_mean: list[float]
    killed: int

    def mean(self, name: str) -> float:
        values = getattr(self, name)
        return float(np.mean(values[min(SETTLING, len(values) - 1) :]))

    @property
    def ratio(self) -> float:
        return self.mean("seconds") / self.mean("bounds")

    def line(self) -> str:
        fleet = f"churn, {self.killed} killed" if self.churn else "calm"
        windows = " ".join(f"{window:.2f}" for window in self.windows)
        return (
            f"{self.instances:>9}  {fleet:<16} {self.mean('instances_mean'):5.2f} "
            f"{self.mean('seconds'):7.3f} {self.mean('bounds'):8.3f} {self.ratio:6.3f} "
            f"{self.mean('train_waits'):6.3f} {self.mean('remote_waits'):7.3f}  "
            f"{windows} | {self.mean('best_windows'):.2f}"
        )


HEADER = (
    f"{'instances':>9}  {'fleet':<16} {'ready':>5} {'step s':>7} {'bound s':>8} {'ratio':>6} "
    f"{'wait s':>6} {'drain s':>7}  seeding window of each step, s | the bound's"
)


def stand_in(prompts: int, slots: int) -> StandIn:
    """An instance, for steps of `STEP_TOKENS` in so many prompts."""
    samples = prompts * GROUP
    mean = STEP_TOKENS / samples
    return StandIn(
        rate=INSTANCE_RATE,
        slots=slots,
        steps=8,
        samples=samples,
        mean=mean,
        longest=round(8 * mean),
    )


def description(server: StandIn) -> str:
    tokens = mean_tokens(server)
    rollout, train = tokens / RESERVED_RATE, tokens / TRAIN_RATE
    response = server.mean * server.slots / server.rate
    longest = response * server.longest / server.mean
    return f"""\
{server.samples // GROUP} prompts x {GROUP} responses of {server.mean:g} tokens on average \
(exponential, at most {server.longest}), micro-batches of {MICRO_BATCH} prompts.
Instance {INSTANCE_RATE:g} tokens/s, reserved {RESERVED_RATE:g}, learner {TRAIN_RATE:g}: a step \
without instances is {rollout:.2f} s of rollout ({rollout / (rollout + train):.2f}) and \
{train:.2f} s of training.
{server.slots} slots per instance, {4 * server.slots} reserved: where all are full a mean response \
takes {response:.3f} s, the longest {longest:.2f} s.
Churn: an instance lives {LIFETIME_SECONDS:g} s, its place is empty for {GAP_SECONDS:g} s (means \
of exponential times).
ready: instances; wait: learner without work after its window; drain: from the last token to \
the end of the step. Means leave out the first {SETTLING} steps."""


def mean_tokens(server: StandIn) -> float:
    """Mean tokens of the first steps: the lengths are drawn, and cut."""
    sizes = [
        response_lengths(step, samples=server.samples, mean=server.mean, longest=server.longest)
        for step in range(8)
    ]
    return float(np.mean([lengths.sum() for lengths in sizes]))


def settings(server: StandIn, instances: int, deterministic: bool) -> RunConfig:
    config = base.get_config()
    config.deterministic = deterministic
    config.learner.prompts_per_step = server.samples // GROUP
    config.learner.micro_batch_prompts = MICRO_BATCH
    config.algorithm.group_size = GROUP
    config.sampling.max_response_tokens = server.longest
    config.fleet.provider = "none"
    config.fleet.max_instances = max(1, instances)
    return run_config_from_dict(config.to_dict())


def measure(
    server: StandIn,
    instances: int,
    churn: bool,
    num_steps: int,
    deterministic: bool,
    keep: Path | None = None,
) -> Result:
    """A run of so many steps with stand-ins for trainer and servers.

    Args:
        keep: folder for the run's files; None: they are thrown away.
    """
    run = settings(server, instances, deterministic)
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) if keep is None else keep
        workdir.mkdir(parents=True, exist_ok=True)
        write_run_config(workdir / "config.json", run, "benchmark")
        reserved = replace(server, rate=RESERVED_RATE, slots=4 * server.slots)
        trainer = StandInTrainer(run, workdir, reserved, train_rate=TRAIN_RATE)
        nursery = Nursery(server, trainer.address, workdir / "join", workdir)
        stop = threading.Event()
        market = replace(
            run.fleet,
            max_instances=instances,
            trace="synthetic",
            trace_speed=1.0,
            synthetic_lifetime_seconds=LIFETIME_SECONDS,
            synthetic_gap_seconds=GAP_SECONDS,
        )
        player = threading.Thread(target=play, args=(market, nursery, stop, 1))
        try:
            for number in range(instances):
                nursery.start(f"machine{number}")
            trainer.wait_for(instances)
            if churn:
                player.start()
            times = [trainer.step(step) for step in range(num_steps)]
        finally:
            stop.set()
            if player.ident is not None:
                player.join()
            trainer.close()
            nursery.close()
        return summary(instances, churn, times, fleet_sizes(workdir), nursery.killed)


def fleet_sizes(workdir: Path) -> list[tuple[float, int]]:
    """(time, instances from then on) as the manager recorded them."""
    sizes = [(0.0, 0)]
    there: set[str] = set()
    for event in read_events(workdir):
        if event["kind"] == "ready":
            there.add(event["instance"])
        elif event["kind"] in ("lost", "drained"):
            there.discard(event["instance"])
        else:
            continue
        sizes.append((event["time"], len(there)))
    return sizes


def summary(
    instances: int,
    churn: bool,
    times: list[StepTime],
    sizes: list[tuple[float, int]],
    killed: int,
) -> Result:
    bounds = [
        step_bound(
            tokens=time.tokens,
            train_seconds=time.tokens / TRAIN_RATE,
            reserved_rate=RESERVED_RATE,
            instance_rate=INSTANCE_RATE,
            start=time.began,
            changes=sizes,
        )
        for time in times
    ]
    return Result(
        instances=instances,
        churn=churn,
        seconds=[time.seconds for time in times],
        bounds=[seconds for seconds, _ in bounds],
        windows=[time.window for time in times],
        best_windows=[window for _, window in bounds],
        train_waits=[time.train_wait for time in times],
        remote_waits=[time.remote_wait for time in times],
        instances_mean=[time.instances for time in times],
        killed=killed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", default="0,1,2,4,8", help="fleet sizes")
    parser.add_argument("--fleets", default="calm,churn")
    parser.add_argument("--steps", type=int, default=12, help="of each calm run; churn has 1.5x")
    parser.add_argument("--prompts", type=int, default=256, help="the fewer, the longer responses")
    parser.add_argument("--slots", type=int, default=4, help="of an instance")
    parser.add_argument("--deterministic", type=int, default=1, choices=(0, 1))
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--keep", type=Path, default=None, help="where the files of runs stay")
    options = parser.parse_args()
    server = stand_in(options.prompts, options.slots)
    print(description(server) + "\n\n" + HEADER, flush=True)
    results = []
    for fleet in options.fleets.split(","):
        churn = fleet == "churn"
        for instances in map(int, options.instances.split(",")):
            if churn and not instances:
                continue
            num_steps = options.steps * 3 // 2 if churn else options.steps if instances else 4
            fixed = bool(options.deterministic)
            keep = options.keep / f"{fleet}_{instances}" if options.keep else None
            result = measure(server, instances, churn, num_steps, fixed, keep)
            results.append(result)
            print(result.line(), flush=True)
    if options.json is not None:
        lines = [{**asdict(r), "ratio": r.ratio, **asdict(server)} for r in results]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
