"""Each operation of `rlboost_kernels`, as the runs call it, with its compiled kernels."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from rlboost_kernels import (
    copy_kv_pages,
    matmul,
    noise_keys,
    ragged_paged_attention,
    selected_logprobs,
    token_noise,
    tokens_from_noise,
    update_kv_pages,
)
from rlboost_kernels.attention import attention_mosaic_gpu, attention_triton, attention_xla
from rlboost_kernels.grouped import grouped_mosaic_gpu as grouped
from rlboost_kernels.packed_attention import packed_triton
from rlboost_kernels.packed_attention.spans import RowSpans
from rlboost_kernels.sampling.noise import NoiseKind

from benchmarks.h100.cost import Assumptions, Call
from benchmarks.h100.program import (
    Program,
    Work,
    attention_flops,
    packed_attention_calls,
)
from rlboost_jax.settings.memory_estimates import MOST_LOGITS, share_of
from rlboost_jax.settings.run_config import RunConfig

_ATTENTION = {"mosaic_gpu": attention_mosaic_gpu, "triton": attention_triton, "xla": None}
SAMPLING: Final[dict[str, NoiseKind]] = {"sampling": "inverse_cdf", "sampling by a tree": "tree"}
_CONTEXT = 4096  # tokens that each decoding sequence holds
_PACKED = 16_384  # rows of which log-probabilities are taken


def programs(run: RunConfig, device: Any) -> Iterator[Program]:
    """Yield programs of decode steps with all slots busy, on one device of an engine."""
    place = SingleDeviceSharding(device)

    def array(shape: tuple[int, ...], dtype: str = "int32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=place)

    def program(
        name: str,
        function: Any,
        arguments: tuple[Any, ...],
        work: Work,
        assumptions: Assumptions | None = None,
        donated: tuple[int, ...] = (),
    ) -> Program:
        return Program(
            name=name,
            lower=partial(jax.jit(function, donate_argnums=donated).lower, *arguments),
            devices=1,
            work=work,
            plan_bytes=0.0,
            held_bytes=sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arguments)),
            assumptions=assumptions or Assumptions(),
        )

    engine, model = run.engine, share_of(run.model, run.engine.tensor_parallel)
    H, K, D = model.num_query_heads, model.num_key_heads, model.head_dim
    E, F, V = model.embed_dim, model.expert_dim or model.hidden_dim, run.model.vocab_size
    T, S, L, dtype = engine.token_rows, engine.slots, engine.page_size, model.dtype
    M = -(-max(_CONTEXT, run.slot_tokens) // L)
    P = S * _CONTEXT // L
    pool = array((P, L, 2 * K, D), engine.kv_dtype)
    read = S * _CONTEXT * 2 * K * D * 2.0
    work = Work(flops=4.0 * S * H * D * _CONTEXT, num_bytes=read)
    q = array((T, H, D), dtype)
    arguments = (q, pool, array((S,)), array((S, M)), array((S + 1,)), array((1,)))
    for name, module in _ATTENTION.items():
        if module is None or not module.why_not(q, pool):
            yield program(
                f"attention {name}",
                partial(ragged_paged_attention, implementation=name),
                arguments,
                work,
                Assumptions(
                    trips=(
                        (r"while/body.*while$", _CONTEXT / max(L, attention_xla.BLOCK_TOKENS)),
                        (r"while$", -(-S // attention_xla.TILE_ROWS)),
                    ),
                    calls=(Call(rf"\[{P},{L},", work.flops, work.num_bytes),),
                ),
            )
    yield _packed_attention(run, array, program)
    vectors = array((T, K, D), dtype)
    yield program(
        "update pages",
        update_kv_pages,
        (pool, vectors, vectors, array((T,))),
        Work(num_bytes=4.0 * T * K * D * 2),
        donated=(0,),
    )
    pages = array((S,))
    page = L * 2 * K * D * 2.0
    yield program(
        "copy pages",
        copy_kv_pages,
        (pool, pages, pages),
        Work(num_bytes=2 * S * page),
        donated=(0,),
    )
    yield program(
        f"matmul {T} x {E} x {F}",
        matmul,
        (array((T, E), dtype), array((E, F), dtype)),
        Work(flops=2.0 * T * E * F, num_bytes=2.0 * E * F),
    )
    logits, column = array((T, V), "float32"), array((T,), "float32")

    def sampled(logits: Any, number: Any, position: Any, real: Any, *, kind: NoiseKind) -> Any:
        keys = noise_keys(number, number, number)
        noise = token_noise(keys, position, kind, vocabulary=V)
        temperature, top_p, top_k = real, real, position
        truncated = run.truncated_sampling
        return tokens_from_noise(logits, noise, temperature, top_p, top_k, truncated=truncated)

    for name, kind in SAMPLING.items():
        yield program(
            name,
            partial(sampled, kind=kind),
            (logits, array((T,), "uint32"), array((T,)), column),
            Work(num_bytes=4.0 * T * V),
        )
    hidden, table = array((_PACKED, E), dtype), array((E, V // engine.tensor_parallel), dtype)

    def total(hidden: Any, table: Any, tokens: Any) -> Any:
        found = selected_logprobs(hidden, table, tokens, block_logits=MOST_LOGITS)
        return found[0].sum()

    yield program(
        f"logprobs {_PACKED:,} rows",
        jax.grad(total, argnums=(0, 1)),
        (hidden, table, array((_PACKED,))),
        Work(flops=6.0 * _PACKED * E * table.shape[1], num_bytes=2.0 * E * table.shape[1]),
    )
    if run.model.num_experts:
        yield from _grouped(run, array, program)


def _grouped(run: RunConfig, array: Any, program: Any) -> Iterator[Program]:
    """Products of groups of rows, each with its expert's matrices, as in a layer of the learner."""
    E, F, dtype = run.model.embed_dim, run.model.expert_dim, run.model.dtype
    X, M = run.model.num_experts, _PACKED * run.model.experts_per_token
    rows, hidden, sizes = array((M, E), dtype), array((M, F), dtype), array((X,))
    stack = array((X, E, F), dtype)
    flops, matrices = 4.0 * M * E * F, 4.0 * X * E * F

    def of_rows(rows: Any, gate: Any, up: Any, sizes: Any) -> Any:
        return grouped.product(rows, (gate, up), sizes)

    def back(gate: Any, up: Any, of_gate: Any, of_up: Any, sizes: Any) -> Any:
        return grouped.total((gate, up), (of_gate, of_up), sizes, transposed=True)

    def of_matrices(rows: Any, gate: Any, up: Any, sizes: Any) -> Any:
        return grouped.outer(rows, (gate, up), sizes)

    work = Work(flops=flops, num_bytes=matrices + 2.0 * M * (E + 2 * F))
    for name, function, arguments in (
        ("product", of_rows, (rows, stack, stack, sizes)),
        ("total", back, (hidden, hidden, stack, stack, sizes)),
        ("outer", of_matrices, (rows, hidden, hidden, sizes)),
    ):
        yield program(f"grouped {name} {M:,} rows", function, arguments, work)


def _packed_attention(run: RunConfig, array: Any, program: Any) -> Program:
    """Forwards and backwards over a row of the learner's, with a device's share of the heads."""
    model, tensor, T = run.model, run.learner.mesh[2], run.row_tokens
    H, K, D = model.num_query_heads // tensor, max(model.num_key_heads // tensor, 1), model.head_dim
    q, k, place = array((1, T, H, D), model.dtype), array((1, T, K, D), model.dtype), array((1, T))
    scores = packed_triton.Scores(model.attention_scale, model.attention_soft_cap or None)

    def gradients(q: Any, k: Any, v: Any, up: Any, *spans: Any) -> Any:
        out, lse = packed_triton.forward(q, k, v, RowSpans(*spans), scores)
        return packed_triton.backward(q, k, v, RowSpans(*spans), out, lse, up, scores)

    # Of a token that sees itself and all before it.
    seen = attention_flops(model, (T + 1) / 2) / (model.num_layers * model.num_query_heads)
    flops = 3 * H * T * seen
    return program(
        f"packed attention {T:,} tokens",
        gradients,
        (q, k, k, q, place, place),
        Work(flops=flops, num_bytes=2.0 * T * D * (5 * H + 4 * K)),
        Assumptions(calls=packed_attention_calls(model, T, H)),
    )
