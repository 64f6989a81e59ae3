"""Decode steps and seconds that drafts save, for the batches of a run at several of its versions.

    python -m benchmarks.speculation RUN [--steps=5,10] [--instances=1] [--slots=64] [--rows=256]
        [--prompts=1 --responses=4]

RUN is the folder of a run that kept checkpoints (`checkpoint.keep_every`). For each step engines
sample the step's batch with the weights of that step, as the manager gives it to them: once with
speculation off and once with drafts and the order for them. Tokens and log-probabilities must be
equal. *Steps* are decode and mixed steps until the last token, of the engine that has most.

With `--rows` every step has so many rows, as on a GPU, where `engine.token_rows` of an H100's
preset are 256 for 64 slots: there a step takes as long with drafts as without, so the ratio of
steps is that of time but for the host's part. Without it the engine is that of the CPU, rows cost
time, and the processor's seconds, in turns, are what counts; `--prompts=1 --responses=4` leaves few
sequences.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import numpy as np

from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.tasks import get_task
from rlboost_jax.engine import engine_plan
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.learner.checkpoints.base import read_policy
from rlboost_jax.manager.events import Close, Event, FromServer, FromTrainer, Send
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.settings import Settings
from rlboost_jax.messages import (
    BeginBatch,
    Generate,
    Hello,
    Manifest,
    PromptRequest,
    Publish,
    Ready,
    Release,
    Released,
    Sampling,
    TokenBatch,
    TrainerHello,
    pack_tokens,
    unpack_counts,
    unpack_ids,
)
from rlboost_jax.rollout.outgoing import token_batches
from rlboost_jax.sequences.identities import Batch, Version, Work
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.speculation_config import SpeculationConfig

TRAINER: Final = 1  # its stream
ROUNDS: Final = 5  # timed
PATIENT: Final = 1e9  # steps that a server may be silent for


@contextmanager
def rows_of_a_gpu(wanted: bool) -> Iterator[None]:
    def layout(config: EngineConfig, slot_tokens: int, **options: Any) -> StepLayout:
        return make_layout(config, slot_tokens, **{**options, "any_rows": False})

    with mock.patch.object(engine_plan, "make_layout", layout if wanted else make_layout):
        yield


def begin_of(run: RunConfig, step: int) -> BeginBatch:
    """The batch of that step, as the trainer asks for it."""
    task, size = get_task(run.task), run.learner.prompts_per_step
    prompts = PromptStream(task, seed=run.seed).slice(step * size, size)
    return BeginBatch(
        batch=Batch(step),
        version=Version(step),
        params_digest="d",
        seed=run.seed,
        group_size=run.algorithm.group_size,
        sampling=Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(task.stop_ids),
        ),
        prompts=tuple(
            PromptRequest(prompt=place, tokens=pack_tokens(prompt.tokens))
            for place, prompt in enumerate(prompts)
        ),
    )


class Server:
    """An engine as the manager sees it, and its decode and mixed steps so far."""

    def __init__(self, engine: Engine, stream: int) -> None:
        self.engine, self.stream = engine, stream
        self.steps = self._sequence = 0

    def hello(self) -> Hello:
        engine = self.engine
        return Hello(
            instance=f"engine-{self.stream}",
            reserved=False,
            slots=engine.slots,
            slot_tokens=engine.slot_tokens,
            price_per_hour=0.0,
            zone="",
            host="",
            device="",
            fingerprint=engine.fingerprint,
            nonce=str(self.stream),
            fetches_lists=True,
        )

    def dispatch(self) -> Iterator[TokenBatch]:
        """Run the next steps."""
        engine, before = self.engine, self.engine.drafts.counts.steps
        engine.begin()
        dispatch = engine.finish()
        self.steps += (engine.drafts.counts.steps - before) or int(dispatch.counts.max(initial=0))
        state = {"in_flight": 0, "running": engine.running, "waiting": engine.waiting}
        for batch in token_batches(dispatch, sequence=self._sequence, **state):
            self._sequence += 1
            yield batch


class Fleet:
    """Engines that a manager gives a batch to. Its clock counts steps of each engine."""

    def __init__(self, run: RunConfig, engines: Sequence[Engine], begin: BeginBatch) -> None:
        patient = {name: PATIENT for name in ("lease_seconds", "renew_seconds", "progress_seconds")}
        manager = replace(run.manager, longest_lease_seconds=0.0, seeding=False, **patient)
        calm = replace(run.fleet, chaos=replace(run.fleet.chaos, enabled=False))
        settings = Settings.of(replace(run, manager=manager, fleet=calm), "run")
        self._manager = Manager(replace(settings, deterministic=False))  # no engine is reserved
        self._now = 0.0
        self._servers = {n: Server(engine, n) for n, engine in enumerate(engines, TRAINER + 1)}
        self._works: dict[int, Work] = {}
        self.found: dict[Work, tuple[bytes, bytes]] = {}  # tokens and log-probabilities
        names: dict[str, Any] = dict(directory="/", list_sha256="list")
        digest = begin.params_digest
        self._hear(FromTrainer(TRAINER, TrainerHello(run_id="run", window=None)))
        self._hear(
            FromTrainer(
                TRAINER,
                Publish(manifest=Manifest(version=begin.version, params_digest=digest, **names)),
            )
        )
        for stream, server in self._servers.items():
            self._hear(FromServer(stream, server.hello()))
            self._hear(FromServer(stream, Ready(version=begin.version, params_digest=digest)))
        self._hear(FromTrainer(TRAINER, begin))

    def run(self) -> int:
        """Sample the batch; returns steps until its last token."""
        while busy := [s for s in self._servers.values() if s.engine.held()]:
            server = min(busy, key=lambda s: (s.steps, s.stream))
            self._now = max(self._now, float(server.steps))
            for batch in server.dispatch():
                ends = np.cumsum(unpack_counts(batch.counts), dtype=np.int64) * 4
                starts = [0, *ends.tolist()]
                for n, request in enumerate(unpack_ids(batch.request_ids).tolist()):
                    part, work = slice(starts[n], starts[n + 1]), self._works[request]
                    tokens, logprobs = self.found.get(work, (b"", b""))
                    self.found[work] = tokens + batch.tokens[part], logprobs + batch.logprobs[part]
                self._hear(FromServer(server.stream, batch))
        return max(server.steps for server in self._servers.values())

    def _hear(self, event: Event) -> None:
        for action in self._manager.handle(event, self._now):
            match action:
                case Send(stream, Generate() as work) if stream in self._servers:
                    server, requests = self._servers[stream], work.whole
                    self._works |= {request.request_id: request.work for request in requests}
                    if not server.engine.held():
                        server.steps = max(server.steps, int(self._now))
                    server.engine.submit(requests)
                case Send(stream, Release(request_ids=ids)) if stream in self._servers:
                    self._servers[stream].engine.release(unpack_ids(ids).tolist())
                    self._hear(FromServer(stream, Released(request_ids=ids)))
                case Close(stream, reason):
                    raise RuntimeError(f"the manager closes {stream}: {reason}")


def engine_for(run: RunConfig, gpu_rows: bool) -> Engine:
    with rows_of_a_gpu(gpu_rows):
        engine = Engine(
            run.model,
            run.engine,
            slot_tokens=run.slot_tokens,
            truncated_sampling=run.truncated_sampling,
            noise=run.sampling.noise,
            drafters=run.speculation.used,
        )
    engine.warm_up()
    return engine


def measure(
    runs: Sequence[RunConfig], fleets: Sequence[list[Engine]], params: Any, begin: BeginBatch
) -> str:
    """Sample a batch by each of two fleets, in turns; a row of the table.

    The ratio of seconds is the median of rounds after the first, and only where engines have the
    rows of a CPU; seconds are the processor's, as others may use it, too.
    """
    found, steps, ratios = [], [], []
    texts = [engine._scheduler.texts for engine in fleets[1]]
    recent = [each._recent for each in texts]  # of earlier batches, and not of this one's last pass
    timed = len(fleets[0][0].layout.decode_rows) > 1
    for again in range(1 + ROUNDS if timed else 1):
        for each, known in zip(texts, recent, strict=True):
            each._recent = known
        seconds = []
        for run, engines in zip(runs, fleets, strict=True):
            for engine in engines:
                engine.load(params, begin.version)
                engine.drafts.counts = SpeculationCounts()
            fleet, since = Fleet(run, engines, begin), time.process_time()
            count = fleet.run()
            seconds.append(time.process_time() - since)
            if not again:
                found.append(fleet.found)
                steps.append(count)
        ratios.append(seconds[0] / seconds[1])
    assert found[0] == found[1], "drafts changed what was sampled"
    counts = sum((engine.drafts.counts for engine in fleets[1]), SpeculationCounts())
    ratio = f"{statistics.median(ratios[1:]):.2f}" if timed else "–"
    return (
        f"| {begin.batch} | {steps[0]} | {steps[1]} | {steps[0] / steps[1]:.2f} "
        f"| {counts.accepted / max(1, counts.drafted):.2f} "
        f"| {counts.tokens / max(1, counts.sequence_steps):.2f} | {ratio} |"
    )


def both(
    run: RunConfig, drafters: Sequence[str], slots: int, rows: int, instances: int
) -> tuple[list[RunConfig], list[list[Engine]]]:
    """Build engines without drafts and with; prints the head of the table.

    Args:
        rows: of each step; 0: as the CPU's engine has them.
    """
    sizes = {"slots": slots, **({"token_rows": rows} if rows else {})}
    run = replace(run, engine=replace(run.engine, **sizes))
    drafting = SpeculationConfig(enabled=True, drafters=tuple(drafters))
    runs = [replace(run, speculation=each) for each in (SpeculationConfig(), drafting)]
    fleets = [[engine_for(each, rows > 0) for _ in range(instances)] for each in runs]
    print(f"{instances} x {slots} slots, rows of a step: {fleets[1][0].layout.decode_rows}")
    print("| step | steps without | with drafts | ratio | accepted | tokens a step | time ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    return runs, fleets


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--steps", default="", help="checkpoints, as 5,10; all that there are")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rows", type=int, default=0, help="of each step; 0: as the CPU's engine")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=None, help="of each batch; all")
    parser.add_argument("--responses", type=int, default=0, help="to each; 0: as the run's")
    parser.add_argument("--drafters", default=",".join(SpeculationConfig().drafters))
    options = parser.parse_args()
    run = read_run_config(options.run / "config.json")
    drafters = options.drafters.split(",")
    runs, fleets = both(run, drafters, options.slots, options.rows, options.instances)
    there = sorted(int(path.name) for path in (options.run / "checkpoints").glob("[0-9]*"))
    steps = [int(step) for step in options.steps.split(",")] if options.steps else there
    for step in steps:
        params = read_policy(run.model, options.run, options.run / "checkpoints", step)
        begin = begin_of(run, step)
        begin = msgspec.structs.replace(
            begin,
            prompts=begin.prompts[: options.prompts],
            group_size=options.responses or begin.group_size,
        )
        print(measure(runs, fleets, params, begin), flush=True)


if __name__ == "__main__":
    main()
