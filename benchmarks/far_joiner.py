"""Seconds from the start of a rollout server behind a bad line to its first token.

    python -m benchmarks.far_joiner [--line=lossy] [--rounds=3] [--config=configs/quickstart.py]

Manager, file server, rollout server and the line's bytes are real: the server has the model of the
configuration, an empty compile cache, and fetches the run's compiled programs and all of a snapshot
over its line. The trainer and its reserved engine are clocks. What each stage took is in the table.
"""

import argparse
import contextlib
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.lines.relay import Line, relay
from benchmarks.stand_in import StandIn
from benchmarks.trainer import StandInTrainer
from benchmarks.wan import LINES
from rlboost_jax.models.params import abstract_params
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.settings.run_config import RunConfig

ROOT = Path(__file__).parents[1]
STAGES = ("config", "programs", "engine", "joined", "weights", "token")
SAID = {  # by the server, at the end of a stage
    "config": "device ",
    "programs": "compil",
    "engine": "programs ready",
}
LIMIT_SECONDS = 600.0
NAME = "far"


@dataclass(frozen=True, kw_only=True)
class Joined:
    """One server's start.

    Attributes:
        ends: seconds from the start of its process to the end of each stage.
        snapshot_bytes: of its weights.
    """

    line: str
    ends: dict[str, float]
    snapshot_bytes: int

    def text(self) -> str:
        return f"{self.line:9}" + "".join(
            f"{self.ends.get(stage, math.nan):10.2f}" for stage in STAGES
        )


def settings(config_file: str) -> RunConfig:
    config = runpy.run_path(config_file)["get_config"]()
    config.deterministic = False  # the reserved engine is a clock, of another fingerprint
    config.weights.source = "http"
    config.fleet.provider = "none"
    config.fleet.chaos.enabled = False
    config.learner.prompts_per_step = 12
    return run_config_from_dict(config.to_dict())


def measure(name: str, config_file: str, seed: int, folder: Path) -> Joined:
    run, (up, down) = settings(config_file), LINES[name]
    workdir, cache, owner = (folder / each for each in ("run", "cache", "owner"))
    for place in (workdir, cache, owner):
        place.mkdir(mode=0o700, parents=True)
    write_run_config(workdir / "config.json", run, "benchmark")
    shapes = abstract_params(run.model)
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, leaf.dtype), shapes)
    reserved = StandIn(rate=1.0, slots=1, steps=1, samples=64, mean=512, longest=512)
    thread = EventLoopThread()
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(owner), "JAX_PLATFORMS": "cpu"}
    with contextlib.ExitStack() as stack:
        trainer = StandInTrainer(run, workdir, reserved, train_rate=1e6, params=params)
        stack.callback(trainer.close)
        program = [sys.executable, "-m", "rlboost_jax.cli.precompile", f"--workdir={workdir}"]
        subprocess.run(program, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
        port = json.loads((workdir / "manager.json").read_text())["weights_port"]
        weights = f"{trainer.address.rpartition(':')[0]}:{port}"
        line, relays = Line(up, down, seed=seed), contextlib.AsyncExitStack()
        stack.callback(thread.close)
        stack.callback(lambda: thread.run(relays.aclose()))
        to_manager, to_weights = (
            thread.run(relays.enter_async_context(relay(line, target)))
            for target in (trainer.address, weights)
        )
        trainer.begin(0)
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        began = time.time()
        server = subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "rlboost_jax.rollout", f"--manager={to_manager}"),
                *(f"--weights={to_weights}", f"--join={workdir / 'join'}", f"--name={NAME}"),
                "--notices=none",
            ],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        ends: dict[str, float] = {}
        hearing = threading.Thread(target=_hear, args=(server, began, ends))
        hearing.start()
        stack.callback(hearing.join)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        while "token" not in ends and time.time() < began + LIMIT_SECONDS:
            time.sleep(0.02)
            if any(each.instance == NAME and each.tokens for each in trainer.fleet):
                ends["token"] = time.time() - began
        for event in read_events(workdir):
            if event["instance"] == NAME and event["kind"] in ("joined", "pulled"):
                stage = "joined" if event["kind"] == "joined" else "weights"
                ends.setdefault(stage, event["time"] - began)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return Joined(line=name, ends=ends, snapshot_bytes=size)


def _hear(server: "subprocess.Popen[bytes]", began: float, ends: dict[str, float]) -> None:
    """Note when what a server says shows the end of a stage; until it has ended."""
    assert server.stdout is not None
    for line in server.stdout:
        for stage, begins in SAID.items():
            if stage not in ends and begins in line.decode():
                ends[stage] = time.time() - began
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--line", default="lossy", choices=LINES)
    parser.add_argument("--rounds", type=int, default=3, help="each with losses of its own")
    parser.add_argument("--config", default="configs/quickstart.py")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    results = []
    print(f"{'line':9}" + "".join(f"{stage:>10}" for stage in STAGES), flush=True)
    for seed in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(options.line, options.config, seed, Path(folder)))
        print(results[-1].text(), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
