"""Stage of gpu.py: a learner's attention over one whole row, ours beside torch's."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from rlboost_kernels.packed_attention import packed_triton
from rlboost_kernels.packed_attention.spans import RowSpans, spans_of

from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet
from benchmarks.gpu_inputs import pairs_of

_HEADS, _KEY_HEADS, _WIDTH, _TOKENS = 32, 8, 128, 14_848  # Qwen3-8B, its longest row
_FORWARD, _BOTH = 2, 6  # products of a pair of tokens that the model needs: 4 more backwards


def attention(*, tiny: bool) -> Cases:
    """One row that is one sequence: every token sees all before it."""
    row = f"row of {_TOKENS:,} tokens, Qwen3-8B"
    ours, theirs = partial(_ours, tiny=tiny), partial(_torch, tiny=tiny)
    return {
        f"{row}: triton, forwards and backwards": partial(ours, backwards=True),
        f"{row}: torch SDPA, forwards and backwards": partial(theirs, backwards=True),
        f"{row}: triton, forwards": partial(ours, backwards=False),
        f"{row}: torch SDPA, forwards": partial(theirs, backwards=False),
    }


def _sizes(tiny: bool) -> tuple[int, int, int, int]:
    """Tokens, query heads, key heads, width."""
    return (64, 2, 1, 64) if tiny else (_TOKENS, _HEADS, _KEY_HEADS, _WIDTH)


@cache
def spans(tokens: int) -> RowSpans:
    return spans_of(jnp.ones((1, tokens), jnp.int32))


def _figure(seconds: float, tiny: bool, backwards: bool, executed: int) -> Figure:
    """Milliseconds, beside what products of the pairs that see each other take at least.

    Args:
        executed: products of a pair that the kernels make.
    """
    tokens, heads, _, width = _sizes(tiny)
    product = 2 * pairs_of(spans(tokens)) * heads * width
    needed, here = product * (_BOTH if backwards else _FORWARD), sheet()
    return figure(
        1e3 * seconds,
        "ms",
        bound=1e3 * needed / here.flops_per_second if here else None,
        tflops=needed / seconds / 1e12,
        tflops_executed=executed * product / seconds / 1e12,
        pairs=pairs_of(spans(tokens)),
    )


def _ours(*, tiny: bool, backwards: bool) -> Figure:
    T, H, K, D = _sizes(tiny)
    scores = packed_triton.Scores(D**-0.5, None)
    q, k, v, up = (
        jax.random.normal(jax.random.key(seed), (1, T, heads, D), jnp.bfloat16)
        for seed, heads in enumerate((H, K, K, H))
    )

    @jax.jit
    def run(q: Any, k: Any, v: Any, up: Any, seen: RowSpans) -> Any:
        out, lse = packed_triton.forward(q, k, v, seen, scores, interpret=tiny)
        if not backwards:
            return out
        return packed_triton.backward(q, k, v, seen, out, lse, up, scores, interpret=tiny)

    call = partial(run, q, k, v, up, spans(T))
    seconds = seconds_of(call, rounds=1 if tiny else 7, calls=1 if tiny else 5)
    executed = (
        sum(packed_triton.PRODUCTS.values())
        if backwards
        else packed_triton.PRODUCTS[packed_triton.FORWARD]
    )
    return _figure(seconds, tiny, backwards, executed)


def _torch(*, tiny: bool, backwards: bool) -> Figure:
    """The kernel that torch chooses, which adds gradients up in any order."""
    import torch

    T, H, K, D = _sizes(tiny)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, up = (
        torch.randn(1, heads, T, D, device=device, dtype=torch.bfloat16, requires_grad=backwards)
        for heads in (H, K, K, H)
    )
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> None:
        out = attend(q, k, v, is_causal=True, enable_gqa=True)
        if backwards:
            torch.autograd.grad(out, (q, k, v), up)

    seconds = _torch_seconds(torch, run, rounds=1 if tiny else 7, calls=1 if tiny else 5)
    return _figure(seconds, tiny, backwards, 7 if backwards else 2)


def _torch_seconds(torch: Any, run: Callable[[], None], *, rounds: int, calls: int) -> float:
    """As `seconds_of`: torch's calls are awaited once a round, too."""

    def repeated() -> None:
        for _ in range(calls):
            run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds_of(repeated, rounds=rounds) / calls
