"""Stages of gpu.py that run engines: decode steps of 8B and 0.6B, and equal bits by prefill."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import jax
import msgspec
import numpy as np

from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet
from benchmarks.gpu_programs import TUNED, engine_program, measured, run_here
from rlboost_jax.settings.memory_estimates import page_bytes, weight_bytes
from rlboost_jax.settings.run_config import RunConfig

PROMPT, NEW = 64, 256
_SMALL, _LARGE = "qwen3_06b_gsm8k", "qwen3_8b_openr1"


def engine_8b(*, tiny: bool) -> Cases:
    """Decode steps of Qwen3-8B with 64 sequences: by context, rows of a step and kind of pages."""
    cases: dict[str, Callable[[], Figure]] = {}
    for context, rows, pages in (
        *((640, 256, "bfloat16"), (3072, 256, "bfloat16"), (640, 64, "bfloat16")),
        *((3072, 64, "bfloat16"), (3072, 256, "float8_e4m3fn")),
    ):
        sizes = {"slots": 64, "token_rows": rows, "kv_dtype": pages}
        cases[f"64 sequences of {context}, {rows} rows, pages in {pages}"] = partial(
            _decode, _LARGE, context, sizes, tiny=tiny
        )
    return cases


def engine_06b(*, tiny: bool) -> Cases:
    """Qwen3-0.6B: tokens that an engine makes, and decode steps with one thing left out."""
    part = partial(_decode, _SMALL, tiny=tiny)
    slots = {"slots": 64, "token_rows": 256, "kv_dtype": "bfloat16", "page_size": 64}
    more = {**slots, "slots": 256}
    return {
        "64 sequences, 64 + 256 tokens": partial(_generated, 64, tiny=tiny, tuned=False),
        "64 sequences, 64 + 256 tokens, products timed by XLA": partial(
            _generated, 64, tiny=tiny, tuned=True
        ),
        "decode step, 64 sequences of 320": partial(part, 320, slots),
        "decode step, 256 sequences of 320": partial(part, 320, more),
        "decode step, contexts of 64": partial(part, 64, slots),
        "decode step, 1,024 words": partial(part, 320, slots, {"vocab_size": 1024}),
        "decode step, no norms of queries and keys": partial(part, 320, slots, {"qk_norm": False}),
        "decode step, 14 of 28 layers": partial(part, 320, slots, {"num_layers": 14}),
    }


def paths(*, tiny: bool) -> Cases:
    """Tokens to which the decode step that sampled them and a prefill up to them give other bits.

    They are rare: what two programs add up in another order is rounded to bfloat16 next, which
    hides nearly all of it. The start-up check of an engine looks at too few tokens.
    """
    narrow = {"embed_dim": 64, "num_layers": 2, "hidden_dim": 128, "vocab_size": 128}
    return {
        "other bits by prefill, 2 layers, 64 wide": partial(_differing, narrow, 2, tiny=tiny),
        "other bits by prefill, Qwen3-0.6B": partial(_differing, {}, 1, tiny=tiny),
    }


def decoding(run: RunConfig, context: int) -> RunConfig:
    """The run with responses so long that half of prompt and response is that many tokens, and
    with pages for these in every slot."""
    prompt = min(run.engine.max_prompt_tokens, context)
    pages = run.engine.slots * (-(-context // run.engine.page_size) + 1)
    return replace(
        run,
        engine=replace(run.engine, max_prompt_tokens=prompt, num_pages=pages),
        sampling=replace(run.sampling, max_response_tokens=2 * context - prompt),
    )


def _decode(
    name: str, context: int, engine: Any, model: Any = None, *, tiny: bool, tuned: bool = False
) -> Figure:
    run = run_here(name, tiny=tiny, engine=engine, model=model or {})
    run = run if tiny else decoding(run, context)
    reads_bytes = run.engine.kv_dtype.startswith("float8")
    attention = "xla" if tiny else ("triton" if reads_bytes else "mosaic_gpu")
    program = engine_program(run, "decode", attention)
    steps = run.engine.steps_per_dispatch
    return measured(run, "engine", program, tuned=tuned, times=steps, attention=attention)


def _generated(batch: int, *, tiny: bool, tuned: bool) -> Figure:
    """Tokens per second, prefill and the host's part included."""
    batch, new = (2, 4) if tiny else (batch, NEW)
    run = _run(tiny)
    with _options(tuned):
        machine = _engine(run, batch, rows=64 if tiny else 256, new=new)
    requests = [request(i, _prompt(machine, i), temperature=0.0, most=new) for i in range(batch)]

    def generate() -> None:
        machine.submit(requests)
        for _ in machine.run():
            pass

    seconds = seconds_of(generate, rounds=1 if tiny else 3)
    return figure(batch * new / seconds, "tokens/s", bound=_most_tokens(run, batch, new))


def _most_tokens(run: RunConfig, batch: int, new: int) -> float | None:
    """Tokens per second of decode steps that read weights and pages, and do nothing else."""
    if (here := sheet()) is None:
        return None
    token = page_bytes(run.model, run.engine) / run.engine.page_size
    pages = batch * (PROMPT + new / 2) * token
    read = weight_bytes(run.model, run.model.dtype) + pages
    return batch * here.memory_bytes_per_second / read


@contextmanager
def _options(tuned: bool) -> Iterator[None]:
    from rlboost_jax.models import compiler_options

    with mock.patch.dict(compiler_options.FOR_GPU, TUNED if tuned else {}):
        yield


def _run(tiny: bool, **model: Any) -> RunConfig:
    return run_here(_SMALL, tiny=tiny, model={"dtype": "bfloat16", **model})


def _engine(run: RunConfig, batch: int, *, rows: int, new: int) -> Any:
    from benchmarks.gpu_inputs import parameters
    from rlboost_jax.engine.engine import Engine

    on_cpu = jax.devices()[0].platform == "cpu"
    config = replace(
        run.engine,
        slots=batch,
        page_size=16 if on_cpu else 64,
        num_pages=0,
        token_rows=rows,
        max_prompt_tokens=PROMPT,
        attention="xla" if on_cpu else "mosaic_gpu",
        kv_dtype=run.model.dtype,
    )
    machine = Engine(run.model, config, slot_tokens=PROMPT + new, truncated_sampling=False)
    machine.load(parameters(run.model, run.model.dtype), 0)
    machine.warm_up()
    return machine


def _differing(model: Any, rounds: int, *, tiny: bool) -> Figure:
    batch, new = (2, 3) if tiny else (64, 96)
    machine = _engine(_run(tiny, **model), batch, rows=64, new=new)
    seen = differ = 0
    for first in range(0, batch * (1 if tiny else rounds), batch):
        prompts = {i: _prompt(machine, i) for i in range(first, first + batch)}
        said = _answers(machine, {(i, 0): request(i, p, most=new) for i, p in prompts.items()})
        again = {
            (i, place): request(i, prompts[i], tokens[:place], most=place + 1)
            for (i, _), (tokens, _) in said.items()
            for place in range(1, len(tokens))
        }
        for (i, place), (tokens, logprobs) in _answers(machine, again).items():
            once = [part[place : place + 1].tobytes() for part in said[i, 0]]
            seen += 1
            differ += once != [tokens.tobytes(), logprobs.tobytes()]
    return figure(differ, "tokens", target="0", seen=seen)


def _prompt(machine: Any, index: int) -> np.ndarray:
    vocab = machine.programs.model.vocab_size
    return np.random.default_rng(index).integers(vocab, size=PROMPT).astype(np.int32)


def request(
    index: int, prompt: np.ndarray, response: Any = (), *, most: int, temperature: float = 1.0
) -> Any:
    """The request of a rollout that has come to `response` already."""
    from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
    from rlboost_jax.sequences.identities import Work

    return GenerateRequest(
        work=Work(seed=0, batch=0, prompt=index, sample=0),
        request_id=index,
        version=0,
        prompt_tokens=pack_tokens(prompt),
        response_tokens=pack_tokens(np.array(response, np.int32)),
        sampling=Sampling(
            temperature=temperature, top_p=1.0, top_k=0, max_tokens=most, stop_ids=()
        ),
    )


def _answers(machine: Any, requests: dict[Any, Any]) -> dict[Any, tuple[np.ndarray, np.ndarray]]:
    """Tokens and log-probabilities of what an engine samples for each."""
    names = dict(enumerate(requests))
    machine.submit(
        [msgspec.structs.replace(requests[name], request_id=i) for i, name in names.items()]
    )
    parts: dict[Any, list[Any]] = {name: [] for name in requests}
    for dispatch in machine.run():
        ends = np.cumsum(dispatch.counts, dtype=int)
        for i, count, end in zip(dispatch.request_ids.tolist(), dispatch.counts, ends, strict=True):
            which = slice(end - count, end)
            parts[names[i]].append((dispatch.tokens[which], dispatch.logprobs[which]))
    return {
        name: (np.concatenate([t for t, _ in some]), np.concatenate([p for _, p in some]))
        for name, some in parts.items()
    }
