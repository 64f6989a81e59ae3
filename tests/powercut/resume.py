"""Go on with runs in one process, which has imported, traced and compiled everything once.

    python -m tests.powercut.resume [COORDINATOR COUNT INDEX]

reads lines of JSON, [workdir, config.json, most servers], and answers each with one: "" or what
was wrong. With a coordinator it is one of several processes of a trainer, which all read the same
lines. After an answer that is not "" it is of no more use.
"""

import contextlib
import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # the coordinator's client has no public name

from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.processes.bulletin import WAIT_MILLISECONDS
from rlboost_jax.learner.processes.follower import follow_training
from rlboost_jax.learner.processes.process_group import ALONE, ProcessGroup, join
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.setup.session_setup import Makers
from rlboost_jax.learner.training import run_training
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.settings.config_loading import read_run_config
from tests.patience import PATIENCE_SECONDS

SAID = "rlboost/"  # what processes of a run have said to each other


class Kept:
    """Programs and engines of one configuration: tracing them is most of a short run's time."""

    def __init__(self) -> None:
        self._programs: Any = None
        self._engines: dict[tuple[jax.Device, ...], Engine] = {}
        self.makers = Makers(
            programs=self.programs,
            engine=self.engine,
            manager=partial(ManagerProcess, answer_seconds=PATIENCE_SECONDS),
        )

    def programs(self, *args: Any) -> Any:
        if self._programs is None:
            self._programs = programs(*args)
        return self._programs

    def engine(self, run: Any, *, devices: list[jax.Device], **more: Any) -> Engine:
        place = tuple(devices)
        engine = self._engines.get(place)
        if engine is None or engine.in_flight or engine.held():
            engine = self._engines[place] = engine_of(run, devices=devices, **more)
        return engine


def resume(workdir: Path, config: Path, max_instances: int, world: ProcessGroup, kept: Kept) -> str:
    run = read_run_config(config)
    run = dataclasses.replace(
        run, fleet=dataclasses.replace(run.fleet, max_instances=max_instances)
    )
    try:
        if world.leads:
            run_training(run, workdir, world, makers=kept.makers)
        else:
            follow_training(run, workdir, world, make_programs=kept.programs)
        if world.count > 1:
            _forget_what_was_said(world)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _forget_what_was_said(world: ProcessGroup) -> None:
    """By its names the next run would take it for its own."""
    client = distributed.global_state.client
    assert client is not None
    for place in ("read", "forgotten"):
        client.wait_at_barrier(f"resume/{place}", WAIT_MILLISECONDS)
        if place == "read" and world.leads:
            client.key_value_delete(SAID)


def main(arguments: list[str]) -> None:
    # Of the process, and not only of Python: Gloo's own code says who is connected.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    world, kept = ALONE, Kept()
    if arguments:
        coordinator, count, index = arguments
        world = join(coordinator, int(count), int(index))
    for line in sys.stdin:
        workdir, config, max_instances = json.loads(line)
        with contextlib.ExitStack() as stack:
            said = stack.enter_context(open(f"{workdir}.{world.index}.log", "w"))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.redirect_stdout(said))
            result = resume(Path(workdir), Path(config), max_instances, world, kept)
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
