"""The public function: validate, choose an implementation, run it."""

from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import jax
from jax import Array, lax

from rlboost_kernels.attention import attention_reference, attention_xla
from rlboost_kernels.attention.validation import as_array, check_arguments, check_ranges
from rlboost_kernels.cpu import ffi_calls as cpu
from rlboost_kernels.implementations import BY_PLATFORM, choose, choose_late

_PROGRAMS = {
    "reference": attention_reference.attend,
    "xla": attention_xla.attend,
    "cpu": cpu.attend,
}
_FOR_GPU = ("mosaic_gpu", "triton")  # modules that are imported once they are named


def ragged_paged_attention(
    q: Array,  # [T, H, D]
    kv_pages: Array,  # [P, L, 2*K, D]
    kv_lens: Array,  # i32[S]
    page_indices: Array,  # i32[S, M]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array | int,  # i32[1]
    *,
    sm_scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    interpret: bool = False,
) -> Any:  # [T, H, D], or that and f32[T, H]
    """Attention of packed query rows to the paged keys and values of their sequences.

    Sequence s owns rows `cu_q_lens[s]` to `cu_q_lens[s+1]` of `q`: one row when it decodes,
    several when it prefills. Its last row is its newest token and sees all `kv_lens[s]`
    tokens; the row before it sees one less, and so on. Keys and values of the new tokens are
    already in the pool (`update_kv_pages`). Scores and sums are float32.

    The bits of a row are a function of its own query, its sequence's keys and values and its
    position. They do not depend on the other rows, on which row or slot it is, on page ids or on
    how a prefill is cut; see the README for the limits of that promise.

    Args:
        q: float32, bfloat16 or float16, and so is the result.
        kv_pages: keys at even head indices, values at odd ones (`kv_pages_shape`). Of the types
            of `q` or, to hold twice as many tokens as 16 bits do, float8_e4m3fn or float8_e5m2:
            these are widened as they are read, which is exact.
        kv_lens: tokens of each sequence, its new rows included.
        page_indices: pages of each sequence in token order. Entries past the last used page
            are read but masked, so any number will do.
        cu_q_lens: where the rows of each sequence start, and at the end where they stop.
        num_seqs: sequences in use, also as an int. What the arrays hold beyond it is ignored; rows
            of `q` from `cu_q_lens[num_seqs]` on come out as zeros.
        sm_scale: factor of the scores; None is D ** -0.5.
        sliding_window: each row sees this many tokens at most, itself included.
        soft_cap: scores become soft_cap * tanh(scores / soft_cap).
        k_scale, v_scale: factors of the keys and values in the pool, those that
            `update_kv_pages` divided them by; None is 1.
        return_lse: return also the logarithm (natural, float32, [T, H]) of the sum of the
            exponentials of a row's scores: what it takes to merge attention over parts of a
            sequence. Rows of no sequence have minus infinity.
        implementation: a name of `available_implementations()`; None or "auto" takes the best.
            On a GPU also "mosaic_gpu" (Hopper) and "triton".
        interpret: run a kernel for GPU on CPU, step by step. The others take no notice.

    Raises:
        ValueError: shapes, types or options do not fit together; or, where they can be seen
            because this is called outside of a compiled program, the metadata's values.
        NotImplementedError: the named implementation cannot run here, or a derivative is asked
            for.

    Source: the signature of `jax.experimental.pallas.ops.tpu.ragged_paged_attention`; pages as
    in Kwon et al. 2023, arXiv:2309.06180.
    """
    num_seqs = as_array(num_seqs)
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
        k_scale=k_scale,
        v_scale=v_scale,
    )
    check_ranges(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    if implementation in _FOR_GPU:
        name = choose_attention(implementation, q, kv_pages, interpret=interpret)
    else:
        name = choose_late(implementation)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    out, lse = _attend(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=float(scale),
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        k_scale=1.0 if k_scale is None else float(k_scale),
        v_scale=1.0 if v_scale is None else float(v_scale),
        return_lse=return_lse,
        name=name,
        interpret=interpret,
    )
    return (out, lse) if return_lse else out


def choose_attention(
    implementation: str | None,
    q: Array | jax.ShapeDtypeStruct,
    kv_pages: Array | jax.ShapeDtypeStruct,
    *,
    platform: str | None = None,
    interpret: bool = False,
) -> str:
    """Return the implementation for arguments of these shapes and types, before a call.

    Args:
        platform: "cpu", "gpu" or "tpu"; None is that of JAX's default device.

    Raises:
        NotImplementedError: the one named cannot run them there.
    """
    if implementation not in _FOR_GPU:
        return choose(implementation, platform)
    module = import_module(f"rlboost_kernels.attention.attention_{implementation}")
    reason = module.why_not(q, kv_pages, interpret=interpret)
    platform = platform or jax.default_backend()
    if not reason and not interpret and platform != "gpu":
        reason = f"it is for GPU and this is {platform}; interpret=True tries it out"
    if reason:
        raise NotImplementedError(f"implementation '{implementation}' cannot run this: {reason}")
    return str(implementation)


_OPTIONS = ("sm_scale", "sliding_window", "soft_cap", "k_scale", "v_scale", "return_lse")


# Compiled on its own when called eagerly; traced once for all layers inside a larger program.
@partial(jax.jit, static_argnames=(*_OPTIONS, "name", "interpret"))
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
    k_scale: float,
    v_scale: float,
    return_lse: bool,
    name: str,
    interpret: bool,
) -> tuple[Array, Array | None]:
    options: dict[str, Any] = {
        "sm_scale": sm_scale,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "return_lse": return_lse,
    }
    if name == BY_PLATFORM:
        on_cpu, elsewhere = (partial(_PROGRAMS[n], **options) for n in ("cpu", choose(None, "gpu")))
        program = jax.custom_jvp(partial(lax.platform_dependent, cpu=on_cpu, default=elsewhere))
    elif name in _FOR_GPU:
        attend = import_module(f"rlboost_kernels.attention.attention_{name}").attend
        program = jax.custom_jvp(partial(attend, **options, interpret=interpret))
    else:
        program = jax.custom_jvp(partial(_PROGRAMS[name], **options))
    program.defjvp(_no_derivative)
    return program(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)


def _no_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> NoReturn:
    raise NotImplementedError(
        "ragged_paged_attention has no derivative; it is for inference from a paged cache"
    )
