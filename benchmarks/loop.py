"""How near the loop comes to its fluid bound, with engines that are clocks.

    python benchmarks/loop.py [--instances=0,1,2,4,8] [--steps=14] [--json=FILE]

The manager, the streams, the workers, the learner's stream of micro-batches and the seeding
window are the real ones, in real processes; only sampling (`stand_in.py`) and gradients (a
sleep) take a set time. Printed for each fleet size, calm and with servers killed and
replaced by the synthetic trace: mean step time of the last steps, the bound (`fluid.py`)
in the same conditions, their ratio, and the window after each step.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.fluid import step_bound
from benchmarks.stand_in import STOP, StandInEngine, response_length, stand_in_hello
from configs import base
from rlboost_jax import messages
from rlboost_jax.config.load import run_config_from_dict, write_run_config
from rlboost_jax.config.records import RunConfig
from rlboost_jax.fleet.market import market_events
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.manager_process import ManagerProcess
from rlboost_jax.learner.micro_batches import MicroBatches
from rlboost_jax.learner.streaming import stream_step
from rlboost_jax.rollout.stream import InstanceClient
from rlboost_jax.rollout.worker import Worker

PROMPTS, GROUP, MICRO_BATCH = 64, 8, 2
MEAN, LONGEST, SLOTS, STEPS = 100.0, 800, 16, 8
INSTANCE_RATE = 4_000.0  # tokens per second
RESERVED_RATE = 4 * INSTANCE_RATE  # eight devices beside instances of two
TRAIN_RATE = 42_000.0  # tokens per second: rollout is 0.72 of a step without instances
LAST = 5  # steps that the mean is taken over


@dataclass
class Result:
    instances: int
    churn: bool
    seconds: list[float]  # of every step
    bounds: list[float]
    windows: list[float]
    lost: int

    @property
    def ratio(self) -> float:
        return float(np.mean(self.seconds[-LAST:]) / np.mean(self.bounds[-LAST:]))


class Servers:
    """Stand-in processes that come and go, and when they did."""

    def __init__(self, address: str, token_file: Path):
        self._command = [
            *(sys.executable, str(Path(__file__).with_name("stand_in.py"))),
            *(f"--manager={address}", f"--token_file={token_file}", f"--rate={INSTANCE_RATE}"),
            *(f"--slots={SLOTS}", f"--steps={STEPS}", f"--mean={MEAN}", f"--longest={LONGEST}"),
        ]
        self._running: list[subprocess.Popen[bytes]] = []
        self.lost = 0

    def start(self) -> None:
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._running.append(
            subprocess.Popen(self._command, env={**os.environ, "PYTHONPATH": path})
        )

    def kill(self, draw: float) -> None:
        if self._running:
            victim = self._running.pop(int(draw * len(self._running)))
            victim.kill()
            victim.wait()
            self.lost += 1

    def close(self) -> None:
        for server in self._running:
            server.send_signal(signal.SIGTERM)
        for server in self._running:
            server.wait()


def settings(instances: int) -> RunConfig:
    config = base.get_config()
    config.learner.prompts_per_step, config.learner.micro_batch_prompts = PROMPTS, MICRO_BATCH
    config.algorithm.group_size = GROUP
    config.sampling.max_response_tokens = LONGEST
    config.task.max_length = 90
    config.fleet.provider = "none"
    config.fleet.max_instances = max(1, instances)
    config.manager.window_initial_seconds = 1.0
    return run_config_from_dict(config.to_dict())


def measure(instances: int, churn: bool, num_steps: int, lifetime: float) -> Result:
    run = settings(instances)
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder)
        write_run_config(workdir / "config.json", run, "benchmark")
        manager = ManagerProcess(workdir, "benchmark")
        thread = EventLoopThread()
        link = ManagerLink(thread, locate=manager.locate)
        link.connect(
            messages.TrainerHello(run_id="benchmark", step=0, window=None, pid=os.getpid())
        )
        address, token = manager.locate()
        servers = Servers(address, workdir / "token")
        reserved = StandInEngine(
            rate=RESERVED_RATE, slots=4 * SLOTS, steps=STEPS, mean=MEAN, longest=LONGEST
        )
        hello = stand_in_hello("reserved", reserved, reserved=True)
        client = InstanceClient(address, token, hello, Worker(reserved), None)
        serving = thread.start(client.run())
        stop = threading.Event()
        try:
            for _ in range(instances):
                servers.start()
            _wait_for(link, instances, client, thread)
            if churn and instances:
                market = replace(
                    run.fleet,
                    max_instances=instances,
                    trace="synthetic",
                    trace_speed=1.0,
                    synthetic_lifetime_seconds=lifetime,
                    synthetic_gap_seconds=lifetime / 4,
                )
                threading.Thread(
                    target=_play, args=(market, servers, stop, instances), daemon=True
                ).start()
            return _steps(link, client, thread, servers, instances, churn, num_steps)
        finally:
            stop.set()
            link.end("measured")
            manager.close()
            servers.close()
            serving.cancel()
            thread.close()


def _play(market, servers: Servers, stop: threading.Event, instances: int) -> None:
    """Kill and start servers as the synthetic trace says, from a full fleet on."""
    began, capacity = time.monotonic(), 0
    for event in market_events(market, seed=1):
        if stop.wait(max(0.0, began + event.seconds - time.monotonic())):
            return
        if event.capacity > capacity and capacity >= 0 and event.seconds > 0:
            servers.start()
        elif event.capacity < capacity:
            servers.kill(event.draw)
        capacity = event.capacity


def _wait_for(
    link: ManagerLink, instances: int, client: InstanceClient, thread: EventLoopThread
) -> None:
    """Until all servers have joined and hold version 0."""
    _publish(link, 0)
    thread.run(client.offer(None, 0))
    while True:
        status = link.status
        ready = [i for i in status.instances if i.state == "ready"] if status else []
        if len(ready) == instances + 1:
            return
        time.sleep(0.05)


def _publish(link: ManagerLink, version: int) -> None:
    link.publish(
        messages.Manifest(
            version=version, directory="", params_digest=str(version), files=(), leaves=()
        )
    )


def _steps(
    link: ManagerLink,
    client: InstanceClient,
    thread: EventLoopThread,
    servers: Servers,
    instances: int,
    churn: bool,
    num_steps: int,
) -> Result:
    result = Result(instances, churn, [], [], [], 0)
    prompts = [np.array([3, i % 7], np.int32) for i in range(PROMPTS)]
    sampling = messages.Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_tokens=LONGEST, stop_ids=(STOP,)
    )
    for step in range(num_steps):
        since = time.perf_counter()
        _publish(link, step)
        link.begin_step(
            messages.BeginStep(
                step=step,
                version=step,
                params_digest=str(step),
                seed=0,
                group_size=GROUP,
                sampling=sampling,
                prompts=tuple(
                    messages.PromptRequest(prompt=i, tokens=messages.pack_tokens(p))
                    for i, p in enumerate(prompts)
                ),
            )
        )
        thread.run(client.offer(None, step))
        collector = StepCollector(
            step,
            version=step,
            prompts=prompts,
            group_size=GROUP,
            reward=lambda prompt, tokens: 0.0,
            normalize_by_std=False,
        )

        def train(index, groups) -> None:
            tokens = sum(len(t.response_tokens) for g in groups for t in g.trajectories)
            time.sleep(tokens / TRAIN_RATE)

        times = stream_step(link, collector, MicroBatches(PROMPTS, MICRO_BATCH, True), train)
        report = link.trained(
            messages.StepTrained(
                step=step, train_wait_seconds=times.waiting, train_seconds=times.training
            )
        )
        link.committed(step)
        seconds = time.perf_counter() - since
        tokens = sum(
            response_length(sample, step, mean=MEAN, longest=LONGEST)
            for sample in range(PROMPTS * GROUP)
        )
        bound, _ = step_bound(
            tokens=tokens,
            train_seconds=tokens / TRAIN_RATE,
            reserved_rate=RESERVED_RATE,
            instance_rate=INSTANCE_RATE,
            instances=report.instances_mean if churn else instances,
        )
        result.seconds.append(seconds)
        result.bounds.append(bound)
        result.windows.append(report.seeding_window_seconds)
    result.lost = servers.lost
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", default="0,1,2,4,8")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--lifetime", type=float, default=20.0, help="mean seconds under churn")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    results = []
    print(f"{'instances':>9} {'fleet':>6} {'step s':>7} {'bound s':>8} {'ratio':>6}  windows, s")
    for instances in map(int, options.instances.split(",")):
        for churn in (False, True) if instances else (False,):
            result = measure(instances, churn, options.steps, options.lifetime)
            results.append(result)
            windows = " ".join(f"{w:.2f}" for w in result.windows)
            print(
                f"{instances:>9} {'churn' if churn else 'calm':>6} "
                f"{np.mean(result.seconds[-LAST:]):7.3f} {np.mean(result.bounds[-LAST:]):8.3f} "
                f"{result.ratio:6.3f}  {windows}" + (f"  ({result.lost} lost)" if churn else ""),
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps([vars(r) for r in results], indent=2))


if __name__ == "__main__":
    main()
