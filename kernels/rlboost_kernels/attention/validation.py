"""Checks of the arguments of ragged paged attention.

`check_arguments` looks at shapes and types only, so it costs nothing in a compiled program.
`check_ranges` looks at values, where there are some to be seen, and `validate_metadata` looks for
more and is for debugging.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ArrayLike = Any  # a JAX array, a tracer or a NumPy array

EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")  # types that a pool may have and queries may not
_FLOATS = ("float32", "bfloat16", "float16")


def as_array(num_seqs: ArrayLike | int) -> ArrayLike:
    """Convert a number of sequences to i32[1]; an array stays as it is. Raises ValueError."""
    if not isinstance(num_seqs, int | np.integer):
        return num_seqs
    count = int(num_seqs)
    _require(0 <= count < 2**31, f"num_seqs is {count}; it must be 0 or more")
    return np.full(1, count, np.int32)


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
    k_scale: float | None = None,
    v_scale: float | None = None,
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

    check_factors(sm_scale=sm_scale, k_scale=k_scale, v_scale=v_scale)
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
    types = (*_FLOATS, *EIGHT_BITS)
    _require(
        str(kv_pages.dtype) in types,
        f"kv_pages has type {kv_pages.dtype}; it must be one of {', '.join(types)}",
    )


def check_factors(**factors: float | None) -> None:
    """Raise ValueError unless each factor, where there is one, is positive and finite."""
    for name, factor in factors.items():
        _require(
            factor is None or 0 < factor < math.inf,
            f"{name} is {factor}; it must be positive and finite",
        )


def check_ranges(
    q: ArrayLike,  # [T, H, D]
    kv_pages: ArrayLike,  # [P, L, 2*K, D]
    kv_lens: ArrayLike,  # i32[S]
    page_indices: ArrayLike,  # i32[S, M]
    cu_q_lens: ArrayLike,  # i32[S+1]
    num_seqs: ArrayLike,  # i32[1]
) -> None:
    """Raise ValueError if the metadata names a row, token or page that is not there.

    In a compiled program the values are not known and nothing is checked. There, whatever lies
    outside is cut to what is inside: wrong metadata give wrong rows and reach no other memory.
    """
    arrays = (kv_lens, page_indices, cu_q_lens, num_seqs)
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return
    lens, pages, ends, num = (np.asarray(array) for array in arrays)
    (T, _, _), (P, L, _, _), (S, M) = q.shape, kv_pages.shape, pages.shape
    n = int(num[0])
    _require(0 <= n <= S, f"num_seqs is {n}; kv_lens has room for {S}")
    lens, pages, ends = lens[:n], pages[:n], ends[: n + 1]
    _require(int(ends[0]) == 0, f"cu_q_lens starts with {ends[0]}; it must start with 0")
    _require(int(ends[-1]) <= T, f"cu_q_lens ends with {ends[-1]}; q has {T} rows")
    rows = np.diff(ends)
    if (s := _first(rows < 0)) is not None:
        raise ValueError(f"cu_q_lens falls from {ends[s]} to {ends[s + 1]} at sequence {s}")
    if (s := _first(rows > lens)) is not None:
        raise ValueError(
            f"sequence {s} has {rows[s]} new rows and kv_lens {lens[s]}; kv_lens counts them too"
        )
    if (s := _first(lens > M * L)) is not None:
        raise ValueError(
            f"kv_lens of sequence {s} is {lens[s]}; {M} pages of {L} tokens hold {M * L}"
        )
    used = np.arange(M)[None, :] * L < lens[:, None]
    if (s := _first((used & ((pages < 0) | (pages >= P))).any(axis=1))) is not None:
        raise ValueError(
            f"page_indices of sequence {s} are {pages[s][used[s]].tolist()}; "
            f"the pool has pages 0 to {P - 1}"
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

    Besides what `check_ranges` looks for, that is a sequence that names a page twice.
    """
    arguments = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    check_arguments(*arguments, sm_scale=None, sliding_window=None, soft_cap=None)
    check_ranges(*arguments)
    L = kv_pages.shape[1]
    for s in range(int(np.asarray(num_seqs)[0])):
        used = np.asarray(page_indices)[s, : -(-int(np.asarray(kv_lens)[s]) // L)]
        _require(
            len(set(used.tolist())) == len(used),
            f"page_indices of sequence {s} name a page twice: {used.tolist()}",
        )


def _first(wrong: np.ndarray) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
