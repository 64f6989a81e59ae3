"""Time the kernels on this machine: python -m rlboost_kernels.bench [--rounds=7] [--only=TEXT]

The implementations of one shape take turns, because a machine's speed drifts by more than they
differ; compare within a shape. A turn goes round a model's worth of layers, each with pages of its
own, 1.6 GB of them or as many as `--gigabytes` says, so that keys and values come from memory and
not from a cache as long as a layer has a few megabytes.

The ceiling is a read of the same pages from end to end by the same threads, with the widest loads
and prefetching, timed in its own turns; without the compiled library it is the sum by NumPy, and on
another device a reduction there. Every call is awaited: on a GPU that is much of a short one, and
`python -m benchmarks.gpu` of the repository, which chains calls, is what to measure with.
torch's SDPA, where torch is installed, gets a contiguous cache, which is what pages cost it nothing
to have, in the type of the queries.
"""

import argparse
import importlib
import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlboost_kernels import (
    active,
    available_implementations,
    ragged_paged_attention,
    update_kv_pages,
)
from rlboost_kernels.cpu.ffi_calls import linear_read
from rlboost_kernels.logprobs.logprobs_bench import logprobs_rows
from rlboost_kernels.matmul.matmul_bench import matmul_rows
from rlboost_kernels.problems import BENCHED, Arguments, Problem, random_arguments
from rlboost_kernels.sampling.sampling_bench import sampling_rows

_COLUMNS = "{:30} {:13} {:12} {:>10} {:>9} {:>9} {:>8} {:>9}"
_LEGEND = """\
median: time of one call.  KV: bytes of keys and values that it reads.
of read: its speed over that of reading the same bytes from end to end; 1.00 is as fast as memory.
to xla, to torch: times as fast as the plain JAX code, and as torch's SDPA (empty: not run).
Compare lines of one shape: implementations take turns, so that all meet the same drift.
"""
_TURN_SECONDS = 0.3  # a slow implementation does not go round all layers in one turn
_MOST_LAYERS = 96


def median_seconds(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median duration of each call; they take turns, two calls each, the second timed."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            jax.block_until_ready(call())
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def median_seconds_per_layer(
    calls: Mapping[str, Callable[[int], object]], num_layers: int, rounds: int
) -> dict[str, float]:
    """Median duration of a call, which takes the number of a layer, over all turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    layers = {name: itertools.cycle(range(num_layers)) for name in calls}
    for name, call in calls.items():
        jax.block_until_ready(call(next(layers[name])))  # compiles
    for _ in range(rounds):
        for name, call in calls.items():
            stop = time.perf_counter() + _TURN_SECONDS
            for _ in range(num_layers):
                start = time.perf_counter()
                jax.block_until_ready(call(next(layers[name])))
                seconds[name].append(time.perf_counter() - start)
                if time.perf_counter() > stop:
                    break
    return {name: statistics.median(times) for name, times in seconds.items()}


def attention_rows(problem: Problem, rounds: int, num_bytes: float) -> list[str]:
    """One line of the table for each implementation, and for torch."""
    arguments = random_arguments(problem)
    pool_bytes = arguments.kv_pages.nbytes
    num_layers = int(np.clip(num_bytes // pool_bytes, 2, _MOST_LAYERS))
    layers = [arguments.kv_pages + jnp.asarray(i, problem.pool_dtype) for i in range(num_layers)]

    names = [name for name in available_implementations() if name != "reference"]
    calls = {name: _attention_call(name, arguments, layers) for name in names}
    if _of_equal_decodes(problem) and (torch := _torch()):
        calls["torch SDPA"] = _torch_call(torch, problem, num_layers)
    seconds = median_seconds_per_layer(
        {"ceiling": _ceiling_call(layers), **calls}, num_layers, rounds
    )
    read = seconds["ceiling"] * problem.bytes_read / pool_bytes
    return [
        _COLUMNS.format(
            problem.name,
            problem.pool_dtype,
            name,
            f"{seconds[name] * 1e3:.3f} ms",
            f"{problem.bytes_read / 1e6:.2f} MB",
            f"{read / seconds[name]:.2f}",
            f"{seconds['xla'] / seconds[name]:.1f} x",
            f"{seconds['torch SDPA'] / seconds[name]:.1f} x" if "torch SDPA" in seconds else "",
        )
        for name in calls
    ]


def update_row(dtype: str, implementation: str, rounds: int) -> str:
    """One line for writing 64 tokens into a donated pool of 34 million elements."""
    pool = jnp.zeros((4096, 16, 8, 64), dtype)
    k = v = jnp.ones((64, 4, 64), dtype)
    slots = jnp.asarray(np.random.default_rng(0).permutation(4096 * 16)[:64].astype(np.int32))
    update = jax.jit(partial(update_kv_pages, implementation=implementation), donate_argnums=0)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        pool = jax.block_until_ready(update(pool, k, v, slots))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return (
        f"write 64 tokens into a donated {dtype} pool of {pool.nbytes / 1e6:.0f} MB, "
        f"{implementation}: {median * 1e6:.0f} µs"
    )


def overhead_row(rounds: int) -> str:
    """One line for a call with next to nothing to do, beside an addition's."""
    tiny = Problem(
        name="", q_lens=(1,), kv_lens=(1,), num_query_heads=1, num_key_heads=1, head_dim=32
    )
    arguments = random_arguments(tiny)
    attend, add = jax.jit(lambda *a: ragged_paged_attention(*a)), jax.jit(lambda x: x + 1)
    calls: dict[str, Callable[[], object]] = {
        "attention": partial(attend, *arguments),
        "add": partial(add, arguments.kv_lens),
    }
    seconds = median_seconds(calls, 50 * rounds)
    return (
        f"attention to one token: {seconds['attention'] * 1e6:.1f} µs a call; "
        f"adding 1 to one number: {seconds['add'] * 1e6:.1f} µs"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="rlboost-kernels bench")
    parser.add_argument("--rounds", type=int, default=7, help="turns per shape")
    parser.add_argument(
        "--only", default="", help="only attention, of shapes whose name and type contain this"
    )
    parser.add_argument(
        "--gigabytes", type=float, default=1.6, help="of keys and values to go round"
    )
    options = parser.parse_args(argv)

    best = ", ".join(sorted(set(active().values())))
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}; the best here: {best}")
    print(_LEGEND)
    print(
        _COLUMNS.format(
            *("shape", "type", "implement.", "median", "KV", "of read", "to xla", "to torch")
        )
    )
    for problem in BENCHED:
        if options.only in f"{problem.name} {problem.pool_dtype}":
            lines = attention_rows(problem, options.rounds, options.gigabytes * 1e9)
            print(*lines, sep="\n", flush=True)
    if not options.only:
        names = [name for name in available_implementations() if name != "reference"]
        for dtype, name in itertools.product(("float32", "bfloat16", "float8_e4m3fn"), names):
            print(update_row(dtype, name, options.rounds))
        print(overhead_row(options.rounds))
        print("", *logprobs_rows(median_seconds, options.rounds), sep="\n", flush=True)
        print("", *matmul_rows(median_seconds, options.rounds), sep="\n", flush=True)
        print("", *sampling_rows(median_seconds, options.rounds), sep="\n", flush=True)


def _attention_call(
    name: str, arguments: Arguments, layers: Sequence[jax.Array]
) -> Callable[[int], object]:
    q, _, *metadata = arguments
    attend = jax.jit(partial(ragged_paged_attention, implementation=name))
    return lambda layer: attend(q, layers[layer], *metadata)


def _ceiling_call(layers: Sequence[jax.Array]) -> Callable[[int], object]:
    if "cpu" in available_implementations() and jax.default_backend() == "cpu":
        read = jax.jit(linear_read)
        return lambda layer: read(layers[layer])
    if jax.default_backend() != "cpu":  # where the pages lie, and not on the host
        largest = jax.jit(jnp.max)
        return lambda layer: largest(layers[layer])
    words = [np.asarray(layer).view(np.uint8).reshape(-1).view(np.float32) for layer in layers]
    return lambda layer: np.sum(words[layer])


def _of_equal_decodes(problem: Problem) -> bool:
    return set(problem.q_lens) == {1} and len(set(problem.kv_lens)) == 1


def _torch() -> Any:
    if jax.default_backend() != "cpu" or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


def _torch_call(torch: Any, problem: Problem, num_layers: int) -> Callable[[int], object]:
    B, K, D = len(problem.q_lens), problem.num_key_heads, problem.head_dim
    dtype = getattr(torch, problem.dtype)
    q = torch.randn(B, problem.num_query_heads, 1, D).to(dtype)
    cache = [torch.randn(2, B, K, problem.kv_lens[0], D).to(dtype) for _ in range(num_layers)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda layer: attend(q, *cache[layer], enable_gqa=True)


if __name__ == "__main__":
    main()
