"""Checks of the arguments of ragged paged attention.

`check_arguments` looks at shapes and types only, so it costs nothing in a compiled program.
`validate_metadata` looks at values and is for debugging, on concrete arrays.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

ArrayLike = Any  # a JAX array, a tracer or a NumPy array

_FLOATS = ("float32", "bfloat16", "float16")


def check_arguments(
    q: ArrayLike,  # [T, H, D]
    kv_pages: ArrayLike,  # [P, L, 2*K, D]
    kv_lens: ArrayLike,  # i32[S]
    page_indices: ArrayLike,  # i32[S, M]
    cu_q_lens: ArrayLike,  # i32[S+1]
    num_seqs: ArrayLike,  # i32[1]
    *,
    sm_scale: float | None,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Raise ValueError, with the value and the limit, if the arguments do not fit together."""
    _require(q.ndim == 3, f"q has shape {q.shape}; it must be [rows, query heads, head dim]")
    check_kv_pages(kv_pages)
    _, H, D = q.shape
    K = kv_pages.shape[2] // 2
    _require(
        kv_pages.shape[3] == D,
        f"q has head dim {D} and kv_pages {kv_pages.shape[3]}; they must be equal",
    )
    _require(H > 0 and H % K == 0, f"{H} query heads are not a multiple of {K} key heads")
    _require(
        str(q.dtype) in _FLOATS, f"q has type {q.dtype}; it must be one of {', '.join(_FLOATS)}"
    )

    integers = {
        "kv_lens": kv_lens,
        "page_indices": page_indices,
        "cu_q_lens": cu_q_lens,
        "num_seqs": num_seqs,
    }
    for name, array in integers.items():
        _require(array.dtype == jnp.int32, f"{name} has type {array.dtype}; it must be int32")
    _require(kv_lens.ndim == 1, f"kv_lens has shape {kv_lens.shape}; it must be [sequences]")
    S = kv_lens.shape[0]
    _require(S > 0, "kv_lens is empty; there must be room for one sequence")
    _require(
        page_indices.ndim == 2 and page_indices.shape[0] == S and page_indices.shape[1] > 0,
        f"page_indices has shape {page_indices.shape}; "
        f"it must be [{S} sequences as in kv_lens, pages per sequence]",
    )
    _require(
        cu_q_lens.shape == (S + 1,),
        f"cu_q_lens has shape {cu_q_lens.shape}; it must be [{S + 1}], one more than kv_lens",
    )
    _require(num_seqs.shape == (1,), f"num_seqs has shape {num_seqs.shape}; it must be [1]")

    _require(sm_scale is None or sm_scale > 0, f"sm_scale is {sm_scale}; it must be positive")
    _require(
        sliding_window is None or sliding_window > 0,
        f"sliding_window is {sliding_window}; it must be at least 1, or None for no window",
    )
    _require(
        soft_cap is None or soft_cap > 0,
        f"soft_cap is {soft_cap}; it must be positive, or None for no cap",
    )


def check_kv_pages(kv_pages: ArrayLike) -> None:
    """Raise ValueError unless `kv_pages` is a pool of combined pages, [P, L, 2*K, D]."""
    _require(
        kv_pages.ndim == 4 and 0 not in kv_pages.shape and kv_pages.shape[2] % 2 == 0,
        f"kv_pages has shape {kv_pages.shape}; it must be "
        "[pages, page size, 2 * key heads, head dim], as kv_pages_shape gives",
    )
    _require(
        str(kv_pages.dtype) in _FLOATS,
        f"kv_pages has type {kv_pages.dtype}; it must be one of {', '.join(_FLOATS)}",
    )


def validate_metadata(
    q: ArrayLike,  # [T, H, D]
    kv_pages: ArrayLike,  # [P, L, 2*K, D]
    kv_lens: ArrayLike,  # i32[S]
    page_indices: ArrayLike,  # i32[S, M]
    cu_q_lens: ArrayLike,  # i32[S+1]
    num_seqs: ArrayLike,  # i32[1]
) -> None:
    """Raise ValueError if the values of the metadata are inconsistent. Copies them to the host.

    `ragged_paged_attention` itself does not look at values: wrong ones give wrong rows.
    """
    check_arguments(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=None,
        sliding_window=None,
        soft_cap=None,
    )
    (T, _, _), (P, L, _, _), (S, M) = q.shape, kv_pages.shape, page_indices.shape
    n = int(np.asarray(num_seqs)[0])
    _require(0 <= n <= S, f"num_seqs is {n}; kv_lens has room for {S}")

    ends = np.asarray(cu_q_lens)[: n + 1]
    _require(int(ends[0]) == 0, f"cu_q_lens starts with {ends[0]}; it must start with 0")
    _require(int(ends[-1]) <= T, f"cu_q_lens ends with {ends[-1]}; q has {T} rows")
    for s in range(n):
        rows = int(ends[s + 1]) - int(ends[s])
        tokens = int(np.asarray(kv_lens)[s])
        _require(rows >= 0, f"cu_q_lens falls from {ends[s]} to {ends[s + 1]} at sequence {s}")
        _require(
            rows <= tokens,
            f"sequence {s} has {rows} new rows and kv_lens {tokens}; kv_lens counts them too",
        )
        _require(
            tokens <= M * L,
            f"kv_lens of sequence {s} is {tokens}; {M} pages of {L} tokens hold {M * L}",
        )
        used = np.asarray(page_indices)[s, : -(-tokens // L)]
        _require(
            bool(np.all((used >= 0) & (used < P))),
            f"page_indices of sequence {s} are {used.tolist()}; the pool has pages 0 to {P - 1}",
        )
        _require(
            len(set(used.tolist())) == len(used),
            f"page_indices of sequence {s} name a page twice: {used.tolist()}",
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
