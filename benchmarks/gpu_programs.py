"""Programs of `benchmarks/h100`, which the table compiles, run on the device at hand."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_figures import Figure, beside_bounds, priced_here
from benchmarks.h100 import engine, learner
from benchmarks.h100.program import Program
from rlboost_jax.settings.run_config import RunConfig

ROUNDS = 7  # whose median counts, after one that does not
CALLS = 20  # in a round, one after the other, of a program that is over in a moment
MOMENT = 1e-3  # seconds
TUNED = {"xla_gpu_deterministic_ops": False}  # XLA times its products, and chooses
ALONE = (1, 1, 1)  # the mesh of a learner on one device
TINY_ROWS = 32  # tokens of a packed row of a run that any machine can do


def measured(
    run: RunConfig, part: str, program: Program, *, tuned: bool = False, **kept: Any
) -> Figure:
    """Time of one call of a program on arguments that the table's row assumes.

    Args:
        part: of the table: "learner", "engine" or "kernels".
        tuned: with other bits in each process.
        kept: see `beside_bounds`.
    """
    compiled, arguments = prepared(run, part, program, tuned=tuned)
    seconds = seconds_of_program(compiled, arguments)
    row = priced_here(program, compiled)
    more = {}
    if program.work.tokens:
        more["tokens_per_second"] = program.work.tokens / seconds
    return beside_bounds(seconds, row, assumed=program.assumed, **more, **kept)


def prepared(
    run: RunConfig, part: str, program: Program, *, tuned: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    """The compiled program and arguments for it."""
    from benchmarks.gpu_inputs import arguments

    lowered = program.lower()
    on_gpu = jax.devices()[0].platform != "cpu"
    compiled = lowered.compile(compiler_options=TUNED if tuned and on_gpu else None)
    return compiled, arguments(run, part, program, lowered)


def seconds_of_program(compiled: Any, arguments: tuple[Any, ...], rounds: int = ROUNDS) -> float:
    """Median seconds of a call, its arguments and results on the device.

    Arguments that a call consumes are replaced by its results, as a run does it.
    """
    from benchmarks.gpu_inputs import filled

    leaves, tree = jax.tree.flatten(arguments)
    leaves = jax.block_until_ready([jnp.asarray(leaf) for leaf in leaves])
    del arguments

    def call() -> None:
        results = jax.tree.leaves(compiled(*jax.tree.unflatten(tree, leaves)))
        for index, leaf in enumerate(leaves):
            if leaf.is_deleted():
                same = (r for r in results if (r.shape, r.dtype) == (leaf.shape, leaf.dtype))
                found = next(same, None)
                leaves[index] = filled(leaf) if found is None else found
                results = [r for r in results if r is not leaves[index]]
        waiting[:] = results + leaves[-1:]

    waiting: list[Any] = []
    seconds, calls = [], 1
    for _ in range(rounds + 1):
        since = time.perf_counter()
        for _ in range(calls):
            call()
        jax.block_until_ready((waiting, leaves))
        seconds.append((time.perf_counter() - since) / calls)
        calls = CALLS if seconds[-1] < MOMENT else 1
    return statistics.median(seconds[1:])


def learner_program(run: RunConfig, name: str) -> Program:
    """The learner's program of that name, on one device."""
    found = learner.programs(run, jax.devices()[:1], all_lengths=True)
    return _named(found, name)


def engine_program(run: RunConfig, kind: str, attention: str) -> Program:
    """A server's program, "decode" or "mixed", on one device."""
    return _named(engine.programs(run, jax.devices()[:1], attention), kind)


def _named(programs: Iterator[Program], name: str) -> Program:
    names = []
    for program in programs:
        names.append(program.name)
        if program.name.startswith(name):
            return program
    raise LookupError(f"no program {name!r}; there are {', '.join(names)}")


def run_here(
    name: str,
    *,
    tiny: bool,
    layers: int = 0,
    engine: Mapping[str, Any] = {},
    model: Mapping[str, Any] = {},
    learner: Mapping[str, Any] = {},
) -> RunConfig:
    """A run of `configs/` on one device.

    Args:
        tiny: one of the same kind that any machine can do.
        layers: of the model; 0: all.
        engine, model, learner: fields with other values.
    """
    from benchmarks.h100.checkpoints import run_of

    run = run_of(name, layers=0 if tiny else layers)
    run = replace(run, learner=replace(run.learner, mesh=ALONE))
    run = small(run) if tiny else run
    return replace(
        run,
        engine=replace(run.engine, tensor_parallel=1, **({} if tiny else engine)),
        model=replace(run.model, **({} if tiny else model)),
        learner=replace(run.learner, **({} if tiny else learner)),
    )


def small(run: RunConfig) -> RunConfig:
    """A run of the same kind that any machine can do."""
    experts = {"num_experts": 4, "experts_per_token": 2, "expert_dim": 16}
    model = replace(
        run.model,
        vocab_size=128,
        embed_dim=32,
        num_layers=2,
        num_query_heads=2,
        num_key_heads=1,
        head_dim=16,
        hidden_dim=64,
        dtype="float32",
        **(experts if run.model.num_experts else {}),
    )
    engine = replace(
        run.engine,
        slots=2,
        token_rows=64,
        num_pages=32,
        page_size=16,
        max_prompt_tokens=24,
        steps_per_dispatch=2,
        kv_dtype="float32",
    )
    sizes = {"pack_tokens": 0, "pack_rows": 2, "row_tokens": TINY_ROWS, "row_lengths": 1}
    return replace(
        run,
        model=model,
        engine=engine,
        learner=replace(run.learner, **sizes),
        sampling=replace(run.sampling, max_response_tokens=24),
        weights=replace(run.weights, rollout_dtype="float32"),
    )
