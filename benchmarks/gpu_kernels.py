"""Stages of gpu.py about kernels: right, alike in any company, and how fast."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rlboost_kernels import ragged_paged_attention
from rlboost_kernels.attention import attention_mosaic_gpu, attention_triton
from rlboost_kernels.problems import Arguments, Problem, random_arguments

from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet

FOR_GPU = {"mosaic_gpu": attention_mosaic_gpu, "triton": attention_triton}
LATENCY_TARGET, PRICE_TARGET = 15.0, 1.10
_LARGE_BYTES = 512e6  # that are read between two visits of the same array: no cache holds them
_PLAIN_BYTES = 70e6  # that the plain form is given, which is a hundred times as slow

# Heads as in Qwen3-0.6B: 4 KB of keys and values for each token.
_qwen = partial(
    Problem, num_query_heads=16, num_key_heads=8, head_dim=128, page_size=64, dtype="bfloat16"
)
_WIDE = {"sm_scale": 0.1, "sliding_window": 150, "soft_cap": 20.0, "k_scale": 0.7}
_mix = partial(_qwen, q_lens=(1, 17, 1, 60, 1), kv_lens=(3, 300, 1500, 60, 513), num_rows=96)
_PROBLEMS: dict[str, tuple[Problem, dict[str, Any]]] = {
    "D 128, pages of 64": (_mix(name=""), {}),
    "D 128, pages of 16, window and cap": (replace(_mix(name=""), page_size=16), _WIDE),
    "D 64, groups of 7": (
        replace(_mix(name=""), head_dim=64, num_query_heads=14, num_key_heads=2),
        {},
    ),
    "D 256, float16": (replace(_mix(name=""), head_dim=256, dtype="float16"), _WIDE),
}
_tiny = partial(_qwen, name="", num_query_heads=2, num_key_heads=1)
_TINY = {
    "small": (_tiny(q_lens=(1, 3), kv_lens=(70, 9), num_rows=6, head_dim=64), dict[str, Any]())
}


def correctness(*, tiny: bool) -> Cases:
    """Relative error against float64, and whether the bits of rows depend on their company."""
    cases: dict[str, Callable[[], Figure]] = {}
    for name in FOR_GPU:
        for label, (problem, options) in (_TINY if tiny else _PROBLEMS).items():
            attended = lru_cache(partial(_attended, name, problem, options, tiny))
            cases[f"{name}: {label}"] = partial(_error, attended, options)
            cases[f"{name}: {label}, same bits alone"] = partial(_alone, attended)
    return cases


def _attended(
    name: str, problem: Problem, options: dict[str, Any], interpret: bool
) -> tuple[Callable[..., jax.Array], Arguments, str]:
    """Attention, what it is given, and why it cannot run, if it cannot."""
    arguments = random_arguments(problem)
    reason = FOR_GPU[name].why_not(*arguments[:2], interpret=interpret)
    attend = partial(ragged_paged_attention, implementation=name, interpret=interpret, **options)
    return jax.jit(attend), arguments, reason


def _error(attended: Callable[[], Any], options: dict[str, Any]) -> Figure:
    attend, arguments, reason = attended()
    if reason:
        return figure(f"left out: {reason}", "")
    error = relative_error(attend(*arguments), in_float64(arguments, **options))
    return figure(error, "of norm", target="≤ 0.008")


def _alone(attended: Callable[[], Any]) -> Figure:
    attend, arguments, reason = attended()
    if reason:
        return figure(f"left out: {reason}", "")
    return figure(companions_cannot_show(attend, arguments), "", target="True")


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


_BATCHES = ((8, 128), (16, 256), (32, 512), (32, 1024), (64, 2048), (64, 4096), (128, 8192))


def bandwidth(*, tiny: bool) -> Cases:
    """Bytes per second of keys and values, over their size in one call."""
    cases: dict[str, Callable[[], Figure]] = {}
    for batch, context in ((2, 64),) if tiny else _BATCHES:
        problem = _decodes(batch, context, tiny=tiny)
        size = f"{problem.bytes_read / 1e6:.0f} MB, {batch} x {context}"
        for name in _names(problem, tiny):
            cases[f"{name}: {size}"] = partial(_rate, problem, name, tiny)
    return cases


def _rate(problem: Problem, name: str, tiny: bool) -> Figure:
    seconds, here = attention_seconds(problem, name, tiny=tiny), sheet()
    bound = here.memory_bytes_per_second / 1e12 if here else None
    return figure(problem.bytes_read / seconds / 1e12, "TB/s", bound=bound)


def latency(*, tiny: bool) -> Cases:
    """Microseconds of a call that has next to nothing to read."""
    cases: dict[str, Callable[[], Figure]] = {}
    for batch, context, page_size in ((2, 64, 64),) if tiny else (
        (1, 64, 64), (16, 128, 64), (64, 256, 64), (64, 256, 16),
    ):  # fmt: skip
        problem = replace(_decodes(batch, context, tiny=tiny), page_size=page_size)
        label = f"{batch} sequences of {context}, pages of {page_size}"
        for name in _names(problem, tiny):
            cases[f"{name}: {label}"] = partial(_microseconds, problem, name, tiny)
    return cases


def _microseconds(problem: Problem, name: str, tiny: bool) -> Figure:
    seconds, here = attention_seconds(problem, name, tiny=tiny), sheet()
    bound = 1e6 * problem.bytes_read / here.memory_bytes_per_second if here else None
    return figure(1e6 * seconds, "µs", bound=bound, target=f"≤ {LATENCY_TARGET}")


def _decodes(batch: int, context: int, *, tiny: bool) -> Problem:
    make = _tiny if tiny else partial(_qwen, name="")
    return make(q_lens=(1,) * batch, kv_lens=(context,) * batch)


def _names(problem: Problem, tiny: bool) -> tuple[str, ...]:
    """Name the implementations to measure; the plain one only where it is quick."""
    few = problem.bytes_read <= _PLAIN_BYTES
    return ("xla",) if tiny else (*FOR_GPU, *(["xla"] if few else []))


def attention_seconds(problem: Problem, name: str, *, tiny: bool) -> float:
    """Seconds of a call.

    A step runs through several pools, as a model does through layers, each call waiting for
    the one before it.
    """
    q, rest, pools = _pools(problem, tiny)

    @jax.jit
    def step(q: jax.Array, pools: list[jax.Array]) -> jax.Array:
        for kv_pages in pools:
            q = ragged_paged_attention(q, kv_pages, *rest, implementation=name)
        return q

    call = partial(step, q, pools)
    return seconds_of(call, rounds=1 if tiny else 7, calls=1 if tiny else 3) / len(pools)


@lru_cache(maxsize=1)
def _pools(problem: Problem, tiny: bool) -> tuple[jax.Array, tuple[jax.Array, ...], list[Any]]:
    """Queries, where their tokens are, and pools that no cache holds."""
    arguments = random_arguments(replace(problem, kv_lens=(64,) * len(problem.kv_lens)))
    K, D, L = problem.num_key_heads, problem.head_dim, problem.page_size
    pages = -(-max(problem.kv_lens) // L)
    num_pages = pages * len(problem.kv_lens)
    num_pools = 2 if tiny else int(np.clip(_LARGE_BYTES // problem.bytes_read, 2, 28))

    def pool(index: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(0), index)
        return jax.random.normal(key, (num_pages, L, 2 * K, D), problem.dtype)

    pools = [jax.jit(pool)(index) for index in range(num_pools)]
    rng = np.random.default_rng(0)
    page_indices = jnp.asarray(rng.permutation(num_pages).reshape(-1, pages), jnp.int32)
    kv_lens = jnp.asarray(problem.kv_lens, jnp.int32)
    rest = (kv_lens, page_indices, arguments.cu_q_lens, arguments.num_seqs)
    return arguments.q, rest, pools


def products(*, tiny: bool) -> Cases:
    """Row counts whose products have the same bits, and what a constant row count costs."""
    shapes = ((1024, 3072), (3072, 1024), (2048, 1024), (4096, 14336), (1024, 151936))
    cases: dict[str, Callable[[], Figure]] = {}
    for K, N in ((64, 128),) if tiny else shapes:
        found = lru_cache(partial(_products, K, N, tiny))
        label = f"{K} x {N}, bfloat16"
        cases[f"{label}: row counts of equal bits"] = partial(_classes, found)
        cases[f"{label}: slots differ at"] = partial(_uneven, found)
        cases[f"{label}: many rows over few"] = partial(_price, found)
    return cases


def _products(K: int, N: int, tiny: bool) -> tuple[dict[bytes, list[int]], list[int], float]:
    """Counts by bits; counts whose rows are not alike; seconds of many rows over those of few."""
    counts = (1, 16, 64) if tiny else (1, 2, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
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
        call = partial(multiply, x, w)
        seconds[count] = seconds_of(call, rounds=1 if tiny else 7, calls=1 if tiny else 20)
    few, many = (16, 64) if tiny else (32, 256)
    return classes, uneven, seconds[many] / seconds[few]


def _classes(found: Callable[[], Any]) -> Figure:
    sets = ("{" + ",".join(map(str, same)) + "}" for same in found()[0].values())
    return figure(" ".join(sets), "")


def _uneven(found: Callable[[], Any]) -> Figure:
    return figure(str(found()[1]), "", target="[]")


def _price(found: Callable[[], Any]) -> Figure:
    """The time of 256 rows over that of 32."""
    return figure(found()[2], "x", target=f"≤ {PRICE_TARGET}")
