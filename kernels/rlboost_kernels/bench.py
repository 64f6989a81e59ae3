"""Time the kernels on this machine: python -m rlboost_kernels.bench [--rounds=20] [--only=TEXT]

The implementations of one shape take turns, because a machine's speed drifts by more than they
differ; compare within a shape. A turn is two calls of which the second counts, so that no one
pays for what another left in the caches. The ceiling is the fastest of three linear passes of
NumPy over as many bytes as the call has to read, timed in the same way: small shapes fit a cache,
and so does their ceiling.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rlboost_kernels import available_implementations, ragged_paged_attention, update_kv_pages
from rlboost_kernels.problems import BENCHED, Problem, random_arguments

_COLUMNS = "{:32} {:14} {:>11} {:>10} {:>11} {:>13}"


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


def attention_rows(problem: Problem, rounds: int) -> list[str]:
    """One line of the table for each implementation."""
    arguments = random_arguments(problem)
    names = available_implementations()
    calls: dict[str, Callable[[], object]] = {
        name: partial(ragged_paged_attention, *arguments, implementation=name) for name in names
    }
    passes = _linear_passes(problem.bytes_read)
    seconds = median_seconds({**calls, **passes}, rounds)
    ceiling = min(seconds[name] for name in passes)
    return [
        _COLUMNS.format(
            problem.name,
            name,
            f"{seconds[name] * 1e3:.3f} ms",
            f"{problem.bytes_read / 1e6:.2f} MB",
            f"{ceiling / seconds[name]:.3f}",
            f"{seconds['reference'] / seconds[name]:.2f} x",
        )
        for name in names
    ]


def update_row(dtype: str, rounds: int) -> str:
    """One line for writing 64 tokens into a donated pool of 34 million elements."""
    pool = jnp.zeros((4096, 16, 8, 64), dtype)
    k = v = jnp.ones((64, 4, 64), dtype)
    slots = jnp.asarray(np.random.default_rng(0).permutation(4096 * 16)[:64].astype(np.int32))
    update = jax.jit(update_kv_pages, donate_argnums=0)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        pool = jax.block_until_ready(update(pool, k, v, slots))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return (
        f"write 64 tokens into a donated {dtype} pool of {pool.nbytes / 1e6:.0f} MB: "
        f"{median * 1e6:.0f} µs"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="rlboost_kernels.bench")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds per shape")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    options = parser.parse_args(argv)

    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    print(
        _COLUMNS.format("shape", "implementation", "median", "KV bytes", "of ceiling", "speed-up")
    )
    for problem in BENCHED:
        if options.only in problem.name:
            print(*attention_rows(problem, options.rounds), sep="\n", flush=True)
    if not options.only:
        print(*(update_row(dtype, options.rounds) for dtype in ("float32", "bfloat16")), sep="\n")


def _linear_passes(num_bytes: int) -> dict[str, Callable[[], object]]:
    source = np.ones(num_bytes // 4, np.float32)
    target = np.empty_like(source)
    return {
        "sum": partial(np.sum, source),
        "maximum": partial(np.max, source),
        "copy": partial(np.copyto, target, source),
    }


if __name__ == "__main__":
    main()
