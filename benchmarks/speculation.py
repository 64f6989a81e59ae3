"""Decode steps and seconds that drafts save, for the batches of a run at several of its versions.

    python -m benchmarks.speculation RUN [--steps=5,10] [--slots=64] [--rows=256] [--leaders_first]

RUN is the folder of a run that kept checkpoints (`checkpoint.keep_every`). For each step an engine
samples the step's batch with the weights of that step, once without and once with drafts. Tokens
and log-probabilities must be equal. *Steps* are decode and mixed steps until the last token.

With `--rows` every step has so many rows, as on a GPU, where `engine.token_rows` of an H100's
preset are 256 for 64 slots: there a step takes as long with drafts as without, so the ratio of
steps is that of time but for the host's part. Without it the engine is that of the CPU, rows cost
time, and seconds (of the second pass each, in turns) are what counts.

With `--leaders_first` one response of each prompt is begun before the second of any, so that later
ones find the texts of earlier ones; as a trainer asks, all responses to a prompt begin together.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.tasks import get_task
from rlboost_jax.engine import engine_plan
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.learner.checkpoints.base import read_policy
from rlboost_jax.learner.evaluation.local_batch import LocalBatch
from rlboost_jax.messages import (
    BeginBatch,
    GenerateRequest,
    PromptRequest,
    Sampling,
    pack_tokens,
)
from rlboost_jax.models.params import Params
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.speculation_config import SpeculationConfig


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
        params_digest="",
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


def leaders_first(engine: Engine, group_size: int) -> None:
    """Have the engine begin one response of each prompt before the second of any."""
    submit = engine.submit

    def sorted_submit(requests: Sequence[GenerateRequest]) -> None:
        submit(sorted(requests, key=lambda each: each.work.sample % group_size))

    engine.submit = sorted_submit  # type: ignore[method-assign]


def sampled(engine: Engine, begin: BeginBatch) -> tuple[dict[Any, bytes], int, float]:
    """Tokens and log-probabilities by response, steps, and seconds."""
    steps, finish = 0, engine.finish

    def counted() -> Any:
        nonlocal steps
        before = engine.drafts.counts.steps
        dispatch = finish()
        steps += (engine.drafts.counts.steps - before) or int(dispatch.counts.max(initial=0))
        return dispatch

    with mock.patch.object(engine, "finish", counted):
        start = time.perf_counter()
        found = {
            (each.work.prompt, each.work.sample): each.tokens + each.logprobs
            for each in LocalBatch(engine, begin).results()
        }
        return found, steps, time.perf_counter() - start


def engine_for(run: RunConfig, drafters: tuple[Any, ...], gpu_rows: bool) -> Engine:
    with rows_of_a_gpu(gpu_rows):
        engine = Engine(
            run.model,
            run.engine,
            slot_tokens=run.slot_tokens,
            truncated_sampling=run.truncated_sampling,
            noise=run.sampling.noise,
            drafters=drafters,
        )
    engine.warm_up()
    return engine


def measure(run: RunConfig, engines: list[Engine], params: Params, step: int) -> str:
    begin, found, steps, seconds = begin_of(run, step), [], [], []
    for engine in engines:
        engine.load(params, Version(step))
        engine.drafts.counts = SpeculationCounts()
    for again in range(2):
        for engine in engines:
            if again:
                engine.load(params, Version(step))
            tokens, count, took = sampled(engine, begin)
            if not again:
                found.append(tokens)
                steps.append(count)
            else:
                seconds.append(took)
    assert found[0] == found[1], "drafts changed what was sampled"
    counts = engines[1].drafts.counts
    return (
        f"| {step} | {steps[0]} | {steps[1]} | {steps[0] / steps[1]:.2f} "
        f"| {counts.accepted / max(1, counts.drafted):.2f} "
        f"| {counts.tokens / max(1, counts.sequence_steps):.2f} | {seconds[0] / seconds[1]:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--steps", default="", help="checkpoints, as 5,10; all that there are")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rows", type=int, default=0, help="of each step; 0: as the CPU's engine")
    parser.add_argument("--leaders_first", action="store_true")
    parser.add_argument("--drafters", default="siblings,prompt")
    options = parser.parse_args()
    run = read_run_config(options.run / "config.json")
    rows = {"token_rows": options.rows} if options.rows else {}
    run = replace(run, engine=replace(run.engine, slots=options.slots, **rows))
    drafters = SpeculationConfig(enabled=True, drafters=tuple(options.drafters.split(","))).used
    engines = [engine_for(run, use, bool(options.rows)) for use in ((), drafters)]
    if options.leaders_first:
        for engine in engines:
            leaders_first(engine, run.algorithm.group_size)
    there = sorted(int(path.name) for path in (options.run / "checkpoints").glob("[0-9]*"))
    steps = [int(step) for step in options.steps.split(",")] if options.steps else there
    print(f"{options.slots} slots, rows of a step: {engines[1].layout.decode_rows}")
    print("| step | steps without | with drafts | ratio | accepted | tokens a step | time ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for step in steps:
        params = read_policy(run.model, options.run, options.run / "checkpoints", step)
        print(measure(run, engines, params, step), flush=True)


if __name__ == "__main__":
    main()
