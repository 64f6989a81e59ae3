"""The public function: validate, choose an implementation, run it."""

from functools import partial
from typing import NoReturn

import jax
from jax import Array

from rlboost_kernels.attention import reference, xla
from rlboost_kernels.attention.validation import check_arguments
from rlboost_kernels.implementations import choose

_PROGRAMS = {"reference": reference.attend, "xla": xla.attend}


def ragged_paged_attention(
    q: Array,  # [T, H, D]
    kv_pages: Array,  # [P, L, 2*K, D]
    kv_lens: Array,  # i32[S]
    page_indices: Array,  # i32[S, M]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array,  # i32[1]
    *,
    sm_scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    implementation: str | None = None,
) -> Array:  # [T, H, D]
    """Attention of packed query rows to the paged keys and values of their sequences.

    Sequence s owns rows `cu_q_lens[s]` to `cu_q_lens[s+1]` of `q`: one row when it decodes,
    several when it prefills. Its last row is its newest token and sees all `kv_lens[s]`
    tokens; the row before it sees one less, and so on. Keys and values of the new tokens are
    already in the pool (`update_kv_pages`). Scores and sums are float32.

    The bits of a row are a function of its own query, its sequence's keys and values and its
    position. They do not depend on the other rows, on which row or slot it is, on page ids or on
    how a prefill is cut; see the README for the limits of that promise.

    Args:
        kv_pages: keys at even head indices, values at odd ones (`kv_pages_shape`).
        kv_lens: tokens of each sequence, its new rows included.
        page_indices: pages of each sequence in token order. Entries past the last used page
            are read but masked, so any number will do.
        cu_q_lens: where the rows of each sequence start, and at the end where they stop.
        num_seqs: sequences in use. What the arrays hold beyond it is ignored; rows of `q` from
            `cu_q_lens[num_seqs]` on come out as zeros.
        sm_scale: factor of the scores; None is D ** -0.5.
        sliding_window: each row sees this many tokens at most, itself included.
        soft_cap: scores become soft_cap * tanh(scores / soft_cap).
        implementation: a name of `available_implementations()`; None or "auto" takes the best.

    Raises:
        ValueError: shapes, types or options do not fit together.
        NotImplementedError: the named implementation cannot run here, or a derivative is asked
            for.

    Source: the signature of `jax.experimental.pallas.ops.tpu.ragged_paged_attention`; pages as
    in Kwon et al. 2023, arXiv:2309.06180.
    """
    check_arguments(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
    )
    name = choose(implementation)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    return _attend(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=float(scale),
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        name=name,
    )


# Compiled on its own when called eagerly; traced once for all layers inside a larger program.
@partial(jax.jit, static_argnames=("sm_scale", "sliding_window", "soft_cap", "name"))
def _attend(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array,
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    name: str,
) -> Array:
    program = jax.custom_jvp(
        partial(
            _PROGRAMS[name],
            sm_scale=sm_scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )
    )
    program.defjvp(_no_derivative)
    return program(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)


def _no_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> NoReturn:
    raise NotImplementedError(
        "ragged_paged_attention has no derivative; it is for inference from a paged cache"
    )
