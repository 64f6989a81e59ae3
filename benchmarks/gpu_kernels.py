"""Parts of gpu.py that need jax and rlboost_kernels alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rlboost_kernels import ragged_paged_attention
from rlboost_kernels.attention import mosaic_gpu, triton
from rlboost_kernels.problems import Arguments, Problem, random_arguments

from benchmarks.turns import median_seconds

FOR_GPU = {"mosaic_gpu": mosaic_gpu, "triton": triton}
SHARE_TARGET, LATENCY_TARGET, PRICE_TARGET = 0.85, 15.0, 1.10
_LARGE_BYTES = 512e6  # that are read between two visits of the same array: no cache holds them
_PASSES = 8  # over memory, between two waits
_PLAIN_BYTES = 70e6  # that the plain form is given, which is a hundred times as slow

# Heads as in Qwen3-0.6B: 4 KB of keys and values for each token.
_qwen = partial(
    Problem, num_query_heads=16, num_key_heads=8, head_dim=128, page_size=64, dtype="bfloat16"
)


def figure(name: str, value: Any, unit: str, target: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target}


def correctness(*, dry_run: bool) -> list[dict[str, Any]]:
    """Relative error against float64, and whether the bits of rows depend on their company."""
    wide = {"sm_scale": 0.1, "sliding_window": 150, "soft_cap": 20.0, "k_scale": 0.7}
    mix = partial(_qwen, q_lens=(1, 17, 1, 60, 1), kv_lens=(3, 300, 1500, 60, 513), num_rows=96)
    problems = {
        "D 128, pages of 64": (mix(name=""), {}),
        "D 128, pages of 16, window and cap": (replace(mix(name=""), page_size=16), wide),
        "D 64, groups of 7": (
            replace(mix(name=""), head_dim=64, num_query_heads=14, num_key_heads=2),
            {},
        ),
        "D 256, float16": (replace(mix(name=""), head_dim=256, dtype="float16"), wide),
    }
    if dry_run:
        small = Problem(
            name="",
            q_lens=(1, 3),
            kv_lens=(70, 9),
            num_query_heads=2,
            num_key_heads=1,
            head_dim=64,
            page_size=64,
            num_rows=6,
            dtype="bfloat16",
        )
        problems = {"small": (small, {})}
    figures = []
    for name, module in FOR_GPU.items():
        for label, (problem, options) in problems.items():
            arguments = random_arguments(problem)
            if reason := module.why_not(*arguments[:2], interpret=dry_run):
                figures.append(figure(f"{name}: {label}", f"left out: {reason}", ""))
                continue
            attend = jax.jit(
                partial(ragged_paged_attention, implementation=name, interpret=dry_run, **options)
            )
            try:
                error = relative_error(attend(*arguments), in_float64(arguments, **options))
                figures.append(figure(f"{name}: {label}", error, "of norm", "≤ 0.008"))
                same = companions_cannot_show(attend, arguments)
                figures.append(figure(f"{name}: {label}, same bits alone", same, "", "True"))
            except Exception as problem_found:  # the next implementation may still be right
                reason = f"failed: {problem_found}".splitlines()[0][:200]
                figures.append(figure(f"{name}: {label}", reason, ""))
    return figures


def in_float64(
    arguments: Arguments,
    *,
    sm_scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float = 1.0,
) -> np.ndarray:
    """Attention row by row on the host."""
    q, kv_pages, kv_lens, pages, cu_q_lens, num_seqs = (np.asarray(a) for a in arguments)
    out, H = np.zeros(q.shape), q.shape[1]
    group = H // (kv_pages.shape[2] // 2)
    for s in range(int(num_seqs[0])):
        tokens = kv_pages[pages[s]].astype(np.float64).reshape(-1, *kv_pages.shape[2:])
        keys, values = (np.repeat(tokens[:, odd::2], group, axis=1) for odd in (0, 1))
        for row in range(cu_q_lens[s], cu_q_lens[s + 1]):
            stop = kv_lens[s] - (cu_q_lens[s + 1] - row) + 1
            first = max(0, stop - sliding_window) if sliding_window else 0
            scores = np.einsum("hd,nhd->hn", q[row].astype(np.float64), keys[first:stop])
            scores *= k_scale * (sm_scale or q.shape[2] ** -0.5)
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[row] = np.einsum("hn,nhd->hd", weights, values[first:stop])
    return out


def relative_error(out: jax.Array, expected: np.ndarray) -> float:
    difference = np.asarray(out).astype(np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def companions_cannot_show(attend: Callable[..., jax.Array], arguments: Arguments) -> bool:
    """Whether each sequence gets the same bits when it is alone, last in line, and decoded."""
    together, starts = np.asarray(attend(*arguments)), np.asarray(arguments.cu_q_lens)
    S, same = len(arguments.kv_lens), True
    for s in range(int(arguments.num_seqs[0])):
        rows = int(starts[s + 1] - starts[s])
        alone = arguments._replace(
            q=jnp.roll(arguments.q, -int(starts[s]), axis=0),
            kv_lens=jnp.full(S, arguments.kv_lens[s]),
            page_indices=jnp.tile(arguments.page_indices[s], (S, 1)),
            cu_q_lens=jnp.full(S + 1, rows, jnp.int32).at[0].set(0),
            num_seqs=jnp.ones(1, jnp.int32),
        )
        mine = together[starts[s] : starts[s + 1]]
        same &= np.asarray(attend(*alone))[:rows].tobytes() == mine.tobytes()
        last = alone._replace(
            q=jnp.roll(arguments.q, 1 - int(starts[s + 1]), axis=0),
            cu_q_lens=jnp.ones(S + 1, jnp.int32).at[0].set(0),
        )
        same &= np.asarray(attend(*last))[:1].tobytes() == mine[-1:].tobytes()
    return same


def bandwidth(*, dry_run: bool) -> list[dict[str, Any]]:
    """Share of the fastest read, over bytes of keys and values in one call."""
    ceiling = read_rate(2**20 if dry_run else 2**31)
    figures = [figure("fastest linear read", ceiling / 1e12, "TB/s")]
    shapes = ((8, 128), (16, 256), (32, 512), (32, 1024), (64, 2048), (64, 4096), (128, 8192))
    for batch, context in ((2, 64),) if dry_run else shapes:
        problem = _qwen(name="", q_lens=(1,) * batch, kv_lens=(context,) * batch)
        if dry_run:
            problem = replace(problem, num_query_heads=2, num_key_heads=1)
        size = f"{problem.bytes_read / 1e6:.0f} MB, {batch} x {context}"
        target = f"≥ {SHARE_TARGET}" if problem.bytes_read >= 128e6 else ""
        for name, seconds in attention_seconds(problem, dry_run=dry_run).items():
            if isinstance(seconds, str):
                figures.append(figure(f"{name}: {size}", seconds, ""))
                continue
            share = problem.bytes_read / seconds / ceiling
            figures.append(figure(f"{name}: {size}", share, "of read", target))
    return figures


def latency(*, dry_run: bool) -> list[dict[str, Any]]:
    """Microseconds of a call that has next to nothing to read."""
    figures = []
    for batch, context, page_size in ((2, 64, 64),) if dry_run else (
        (1, 64, 64), (16, 128, 64), (64, 256, 64), (64, 256, 16),
    ):  # fmt: skip
        problem = _qwen(
            name="", q_lens=(1,) * batch, kv_lens=(context,) * batch, page_size=page_size
        )
        if dry_run:
            problem = replace(problem, num_query_heads=2, num_key_heads=1)
        label = f"{batch} sequences of {context}, pages of {page_size}"
        for name, seconds in attention_seconds(problem, dry_run=dry_run).items():
            value = seconds if isinstance(seconds, str) else seconds * 1e6
            figures.append(figure(f"{name}: {label}", value, "µs", f"≤ {LATENCY_TARGET}"))
    return figures


def attention_seconds(problem: Problem, *, dry_run: bool) -> dict[str, float | str]:
    """Seconds of a call by implementation, or what went wrong.

    A step runs through several pools, as a model does through layers, each call waiting for
    the one before it.
    """
    arguments = random_arguments(replace(problem, kv_lens=(64,) * len(problem.kv_lens)))
    K, D, L = problem.num_key_heads, problem.head_dim, problem.page_size
    pages = -(-max(problem.kv_lens) // L)
    num_pages = pages * len(problem.kv_lens)
    num_pools = 2 if dry_run else int(np.clip(_LARGE_BYTES // problem.bytes_read, 2, 28))

    def pool(index: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(0), index)
        return jax.random.normal(key, (num_pages, L, 2 * K, D), problem.dtype)

    pools = [jax.jit(pool)(index) for index in range(num_pools)]
    rng = np.random.default_rng(0)
    page_indices = jnp.asarray(rng.permutation(num_pages).reshape(-1, pages), jnp.int32)
    kv_lens = jnp.asarray(problem.kv_lens, jnp.int32)
    measured: dict[str, float | str] = {}
    few = problem.bytes_read <= _PLAIN_BYTES  # seconds a call, of what is there to be compared with
    for name in ("xla",) if dry_run else (*FOR_GPU, *(["xla"] if few else [])):
        attend = partial(ragged_paged_attention, implementation=name)

        @jax.jit
        def step(q: jax.Array, pools: list[jax.Array], attend: Any = attend) -> jax.Array:
            for kv_pages in pools:
                rest = (kv_lens, page_indices, arguments.cu_q_lens, arguments.num_seqs)
                q = attend(q, kv_pages, *rest)
            return q

        try:
            call = partial(step, arguments.q, pools)
            measured[name] = seconds_of(call, rounds=2 if dry_run else 20) / num_pools
        except Exception as error:
            measured[name] = f"failed: {error}".splitlines()[0][:200]
    return measured


def products(*, dry_run: bool) -> list[dict[str, Any]]:
    """Row counts whose products have the same bits, and what a constant row count costs."""
    shapes = ((1024, 3072), (3072, 1024), (2048, 1024), (4096, 14336), (1024, 151936))
    counts = (1, 2, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
    if dry_run:
        shapes, counts = ((64, 128),), (1, 16, 64)
    figures = []
    for K, N in shapes:
        w = jax.random.normal(jax.random.key(1), (K, N), jnp.bfloat16) / K**0.5
        row = jax.random.normal(jax.random.key(2), (K,), jnp.bfloat16)
        multiply = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
        classes: dict[bytes, list[int]] = {}
        uneven, seconds = [], {}
        for count in counts:
            x = jnp.tile(row, (count, 1))
            y = np.asarray(multiply(x, w))
            if (y != y[:1]).any():
                uneven.append(count)
            classes.setdefault(y[0].tobytes(), []).append(count)
            seconds[count] = seconds_of(partial(multiply, x, w), rounds=3 if dry_run else 30)
        label = f"{K} x {N}, bfloat16"
        sets = " ".join("{" + ",".join(map(str, same)) + "}" for same in classes.values())
        figures.append(figure(f"{label}: row counts of equal bits", sets, ""))
        figures.append(figure(f"{label}: slots differ at", str(uneven), "", "[]"))
        small, constant = counts[1], 64 if dry_run else 256
        price = seconds[constant] / seconds[32 if 32 in seconds else small]
        figures.append(
            figure(f"{label}: {constant} rows over few", price, "x", f"≤ {PRICE_TARGET}")
        )
    return figures


def read_rate(num_bytes: int) -> float:
    """Bytes per second of the fastest of some linear passes over that much memory.

    Several follow one another unawaited: else a launch would count with each.
    """
    array = jnp.ones(num_bytes // 4, jnp.float32)

    def repeated(f: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
        return [f(array) for _ in range(_PASSES)]

    passes = map(jax.jit, (jnp.sum, jnp.max, lambda x: jnp.sum(x.view(jnp.int32))))
    seconds = min(seconds_of(partial(repeated, f), rounds=10) for f in passes)
    return num_bytes * _PASSES / seconds


def seconds_of(call: Callable[[], Any], *, rounds: int) -> float:
    """Median of `rounds` calls after two that do not count."""
    return median_seconds({"call": call}, rounds, uncounted=2)["call"]
