"""How near a fleet behind a bad line comes to the fluid bound of that line, and whom it loses.

    python -m benchmarks.wan --lines=good,far,lossy,narrow,lopsided [--minutes=2] [--json=FILE]

All servers are behind lines of their own (`benchmarks/lines/`): for the stream to the manager and
for weights, which they fetch over HTTP, all of a snapshot for every version. Engines and learner
are clocks (`stand_in.py`), all else is real. The bound is that of `fluid.py` with servers that
begin a step when the line lets them:

    three round trips (the announcement, the first byte of the weights, Ready, the first work, its
    first token) and the bytes of a snapshot at the line's rate

and whose tokens come no faster than the line takes them at 14 bytes each. Nobody is killed: each
`lost` event is a false alarm.
"""

import argparse
import contextlib
import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.fluid import step_bound
from benchmarks.lines.relay import Line, relay
from benchmarks.lines.tcp import Way
from benchmarks.nursery import Nursery
from benchmarks.stand_in import StandIn
from benchmarks.trainer import StandInTrainer
from configs import base
from rlboost_jax.learner.fleet.link import EventLoopThread
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.settings.run_config import RunConfig

GROUP, MICRO_BATCH = 8, 2
PROMPTS, MEAN, LONGEST = 128, 64, 192  # of a step: 65,536 tokens or somewhat less
SLOTS, SLOTS_RESERVED = 8, 32
INSTANCE_RATE, RESERVED_RATE, TRAIN_RATE = 200.0, 1000.0, 12_000.0  # tokens per second
SNAPSHOT_BYTES = 256_000
TOKEN_BYTES = 14
SETTLING = 2  # first steps, in which the window is being found: not in the means
MBIT = 125_000  # bytes

LINES = {  # towards the manager, and back
    "good": (Way(delay=0.001), Way(delay=0.001)),
    "far": (Way(delay=0.15, jitter=0.02), Way(delay=0.15, jitter=0.02)),
    "lossy": (Way(delay=0.15, loss=0.1), Way(delay=0.15, loss=0.1)),
    "narrow": (
        Way(delay=0.03, bytes_per_second=MBIT),
        Way(delay=0.03, bytes_per_second=MBIT),
    ),
    "lopsided": (
        Way(delay=0.05, jitter=0.05, loss=0.01, reordering=0.02, bytes_per_second=MBIT / 2),
        Way(delay=0.02, loss=0.01, bytes_per_second=8 * MBIT),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    line: str
    servers: int
    minutes: float
    seconds: list[float]  # of each step
    bounds: list[float]
    false_alarms: list[str]  # reasons
    round_trip: float  # seconds, the worst as the manager knows it
    losses: float
    leases: tuple[float, float]  # the shortest and the longest at the end

    @property
    def share(self) -> float:
        """Share of the bound's speed that was reached."""
        return float(np.sum(self.bounds[SETTLING:]) / np.sum(self.seconds[SETTLING:]))

    def text(self) -> str:
        return (
            f"{self.line:9} {self.servers:7} {len(self.seconds):5} "
            f"{np.mean(self.seconds[SETTLING:]):7.2f} {np.mean(self.bounds[SETTLING:]):7.2f} "
            f"{self.share:6.2f} {len(self.false_alarms):5}  {self.round_trip:6.3f} "
            f"{self.losses:6.3f}  {self.leases[0]:.1f}..{self.leases[1]:.1f}"
        )


HEADER = (
    f"{'line':9} {'servers':>7} {'steps':>5} {'step s':>7} {'bound s':>7} {'share':>6} "
    f"{'lost':>5}  {'trip s':>6} {'losses':>6}  leases, s"
)


def settings(servers: int) -> RunConfig:
    config = base.get_config()
    config.deterministic = False
    config.learner.prompts_per_step = PROMPTS
    config.learner.micro_batch_prompts = MICRO_BATCH
    config.algorithm.group_size = GROUP
    config.sampling.max_response_tokens = LONGEST
    config.fleet.provider = "none"
    config.fleet.max_instances = servers
    return run_config_from_dict(config.to_dict())


def begins_after(up: Way, down: Way, snapshot_bytes: int) -> float:
    """Seconds from a version's publication to the first token of it that reaches the manager."""
    return 3 * (up.delay + down.delay) + snapshot_bytes / down.bytes_per_second


def measure(name: str, servers: int, minutes: float) -> Result:
    run, (up, down) = settings(servers), LINES[name]
    server = StandIn(
        rate=INSTANCE_RATE, slots=SLOTS, steps=8, samples=PROMPTS * GROUP, mean=MEAN,
        longest=LONGEST,
    )  # fmt: skip
    reserved = replace(server, rate=RESERVED_RATE, slots=SLOTS_RESERVED)
    thread = EventLoopThread()
    with contextlib.ExitStack() as stack:
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_run_config(workdir / "config.json", run, "benchmark")
        trainer = StandInTrainer(
            run, workdir, reserved, train_rate=TRAIN_RATE, snapshot_bytes=SNAPSHOT_BYTES
        )
        relays = contextlib.AsyncExitStack()
        nursery = Nursery(server, trainer.address, workdir / "join", workdir)
        weights_port = json.loads((workdir / "manager.json").read_text())["weights_port"]
        weights = f"{trainer.address.rpartition(':')[0]}:{weights_port}"
        try:
            for number in range(servers):
                line = Line(up, down, seed=number)
                to_manager, to_weights = (
                    thread.run(relays.enter_async_context(relay(line, target)))
                    for target in (trainer.address, weights)
                )
                nursery.start(
                    f"server-{number}", f"--manager={to_manager}", f"--weights={to_weights}"
                )
            trainer.wait_for(servers)
            times, until = [], time.monotonic() + 60 * minutes
            while len(times) <= SETTLING or time.monotonic() < until:
                times.append(trainer.step(len(times)))
            alarms = [
                f"{e['instance']}: {e['detail']['reason']}"
                for e in read_events(workdir)
                if e["kind"] == "lost" and e["instance"] != "reserved"  # it is behind no line
            ]
            fleet = [one for one in trainer.fleet if not one.reserved]
        finally:
            nursery.close()
            trainer.close()
            thread.run(relays.aclose())
            thread.close()
    rate = min(INSTANCE_RATE, up.bytes_per_second / TOKEN_BYTES)
    bounds = [
        step_bound(
            tokens=step.tokens,
            train_seconds=step.tokens / TRAIN_RATE,
            reserved_rate=RESERVED_RATE,
            instance_rate=rate,
            start=step.began,
            changes=[(0.0, 0), (step.began + begins_after(up, down, SNAPSHOT_BYTES), servers)],
        )[0]
        for step in times
    ]
    leases = [one.lease_seconds for one in fleet] or [math.nan]
    return Result(
        line=name,
        servers=servers,
        minutes=minutes,
        seconds=[step.seconds for step in times],
        bounds=bounds,
        false_alarms=alarms,
        round_trip=max((one.round_trip for one in fleet), default=math.nan),
        losses=max((one.losses for one in fleet), default=math.nan),
        leases=(min(leases), max(leases)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", default=",".join(LINES))
    parser.add_argument("--servers", type=int, default=14)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each line")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    print(HEADER, flush=True)
    results = []
    for name in options.lines.split(","):
        results.append(measure(name, options.servers, options.minutes))
        print(results[-1].text(), flush=True)
        for reason in results[-1].false_alarms:
            print(f"  lost: {reason}", flush=True)
    if options.json is not None:
        rows = [{**asdict(r), "share": r.share} for r in results]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
