"""Shapes that the tests check and `bench.py` times, and random arguments for them."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A ragged batch: which rows each sequence brings, and how many tokens it then holds."""

    name: str
    q_lens: tuple[int, ...]  # new rows of each sequence
    kv_lens: tuple[int, ...]  # tokens of each sequence, new rows included
    num_query_heads: int  # H
    num_key_heads: int  # K
    head_dim: int  # D
    page_size: int = 16  # L
    pages_per_sequence: int = 0  # M; 0 takes what the longest sequence needs
    num_rows: int = 0  # T; 0 takes the sum of q_lens
    num_slots: int = 0  # S; 0 takes the number of sequences
    dtype: str = "float32"
    kv_dtype: str = ""  # of the pool; "" takes dtype

    @property
    def pool_dtype(self) -> str:
        """Type of the keys and values in the pool."""
        return self.kv_dtype or self.dtype

    @property
    def bytes_read(self) -> int:
        """Bytes of keys and values that one call has to read at least once."""
        itemsize = jnp.dtype(self.pool_dtype).itemsize
        token_bytes = 2 * self.num_key_heads * self.head_dim * itemsize
        return sum(self.kv_lens) * token_bytes


class Arguments(NamedTuple):
    """Arguments of `ragged_paged_attention`, in its order."""

    q: Array  # [T, H, D]
    kv_pages: Array  # [P, L, 2*K, D]
    kv_lens: Array  # i32[S]
    page_indices: Array  # i32[S, M]
    cu_q_lens: Array  # i32[S+1]
    num_seqs: Array  # i32[1]


def random_arguments(problem: Problem, seed: int = 0) -> Arguments:
    """Draw normal queries, keys and values; pages in random order, with a few to spare."""
    rng = np.random.default_rng(seed)
    n = len(problem.q_lens)
    S = problem.num_slots or n
    T = problem.num_rows or sum(problem.q_lens)
    M = problem.pages_per_sequence or -(-max(problem.kv_lens) // problem.page_size)
    P = S * M + 3
    K, D = problem.num_key_heads, problem.head_dim

    kv_lens = np.zeros(S, np.int32)
    kv_lens[:n] = problem.kv_lens
    cu_q_lens = np.full(S + 1, sum(problem.q_lens), np.int32)
    cu_q_lens[: n + 1] = np.cumsum([0, *problem.q_lens])
    page_indices = rng.permutation(P)[: S * M].reshape(S, M).astype(np.int32)
    q = rng.standard_normal((T, problem.num_query_heads, D), np.float32)
    kv_pages = rng.standard_normal((P, problem.page_size, 2 * K, D), np.float32)
    return Arguments(
        q=jnp.asarray(q, problem.dtype),
        kv_pages=jnp.asarray(kv_pages, problem.pool_dtype),
        kv_lens=jnp.asarray(kv_lens),
        page_indices=jnp.asarray(page_indices),
        cu_q_lens=jnp.asarray(cu_q_lens),
        num_seqs=jnp.asarray([n], jnp.int32),
    )


def _spread(shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """Space lengths evenly between two, in a scattered order."""
    lengths = np.linspace(shortest, longest, count).astype(int)
    return tuple(int(length) for length in np.random.default_rng(0).permutation(lengths))


def _decodes(count: int, length: int) -> dict[str, tuple[int, ...]]:
    return {"q_lens": (1,) * count, "kv_lens": (length,) * count}


# The quickstart's model: 4 query heads, 2 key heads, head dim 32.
_small = partial(
    Problem, num_query_heads=4, num_key_heads=2, head_dim=32, pages_per_sequence=13, num_slots=64
)
_medium = partial(Problem, num_query_heads=8, num_key_heads=4, head_dim=64)
_wide = partial(Problem, num_query_heads=16, num_key_heads=8, head_dim=128)

BENCHED = (
    _small(name="small decode, 64 x 3-32", q_lens=(1,) * 64, kv_lens=_spread(3, 32, 64)),
    _small(name="small decode, 64 x 7-208", q_lens=(1,) * 64, kv_lens=_spread(7, 208, 64)),
    _small(name="small mix, 40 + 24 x 1 of 150", q_lens=(40, *(1,) * 24), kv_lens=(150,) * 25),
    *(
        shape(dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for shape in (
            partial(_medium, name="medium decode, 32 x 1024", **_decodes(32, 1024)),
            partial(_medium, name="medium decode, 32 x 4096", **_decodes(32, 4096)),
            partial(_medium, name="medium decode, 1 x 32768", **_decodes(1, 32768)),
            partial(_wide, name="wide decode, 32 x 1024", **_decodes(32, 1024)),
            partial(_medium, name="medium prefill, 256 of 1024", q_lens=(256,), kv_lens=(1024,)),
        )
    ),
    *(
        shape(dtype="bfloat16", kv_dtype="float8_e4m3fn", **_decodes(32, 1024))
        for shape in (
            partial(_medium, name="medium decode, 32 x 1024"),
            partial(_wide, name="wide decode, 32 x 1024"),
        )
    ),
)

_ragged = partial(
    Problem, q_lens=(1, 17, 1, 33, 5), kv_lens=(90, 40, 1, 33, 61), num_rows=64, num_slots=8
)
CHECKED = (
    _ragged(name="no groups", num_query_heads=2, num_key_heads=2, head_dim=32),
    _ragged(name="groups of 2", num_query_heads=4, num_key_heads=2, head_dim=32),
    _ragged(name="groups of 4", num_query_heads=8, num_key_heads=2, head_dim=64, page_size=32),
    _ragged(name="groups of 7", num_query_heads=7, num_key_heads=1, head_dim=128),
    _ragged(name="large pages", num_query_heads=4, num_key_heads=2, head_dim=64, page_size=64),
    _ragged(
        name="spare pages", num_query_heads=4, num_key_heads=4, head_dim=64, pages_per_sequence=9
    ),
)
