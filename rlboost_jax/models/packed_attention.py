"""Attention over packed rows by one fused kernel, forwards and backwards, for GPUs.

Scores never leave the chip, and nothing has to be read by the host. A mesh divides rows by `data`
and `fsdp` and heads by `tensor`, and every device runs the kernel on what it has: the partitioner
of a program does not look into kernels, and would gather all of their operands.

| kernel | heads | windows, soft caps | equal bits | sequences of a row |
|---|---|---|---|---|
| `triton` | bfloat16, float16 (float32: slow) | yes | yes | any number |
| `cudnn` | bfloat16, float16 | no | forwards | up to 64, beyond them block by block |
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels.packed_attention import packed_triton
from rlboost_kernels.packed_attention.spans import RowSpans, spans_of

from rlboost_jax.models import cudnn_attention
from rlboost_jax.models.chunked_attention import Form
from rlboost_jax.models.parameter_sharding import BATCH
from rlboost_jax.settings.model_config import ModelConfig

Kernel = Literal["triton", "cudnn"]
KERNELS: Final[tuple[Kernel, ...]] = ("triton", "cudnn")  # the most trusted first
EQUAL_BITS: Final[tuple[Kernel, ...]] = ("triton",)  # for equal arguments; "auto" takes no others
# What a kernel's backward pass reads besides queries, keys and values: by this name
# `forward.REMAT_POLICIES` keeps it, as it is small and costs a whole kernel to compute again.
SAVED: Final = "packed_attention"

Fused = Callable[
    [Form, Float[Array, "N H D"], Float[Array, "N K D"], Float[Array, "N K D"], Array | None],
    Float[Array, "N H D"],
]


def why_not(
    kernel: Kernel, config: ModelConfig, mesh: Mesh | AbstractMesh | None, platform: str
) -> str:
    """Why a kernel cannot run a model; "" if it can as far as its shapes tell."""
    tensor = 1 if mesh is None else mesh.shape["tensor"]
    H, K = config.num_query_heads, config.num_key_heads
    if platform not in ("gpu", "cuda"):
        return f"{kernel} is for GPUs and this is {platform}"
    if H % tensor or (K % tensor and tensor % K):
        return (
            f"{H} query and {K} key heads cannot be divided by {tensor} devices, which "
            "learner.mesh has along tensor"
        )
    match kernel:
        case "triton":
            return packed_triton.why_not(config.dtype, config.head_dim)
        case "cudnn":
            return cudnn_attention.why_not(config)
        case _:
            assert_never(kernel)


def fused_attention(
    kernel: Kernel,
    window: int,
    segments: Int[Array, "B T"],
    mesh: Mesh | None,
    *,
    interpret: bool = False,
) -> Fused:
    """Build a fused form of `attention.attend_dense` for given segments and mesh.

    Args:
        window: of layers that have one; 0: there are none.
        interpret: run `triton` without a GPU, slowly.
    """
    divided = _Divided(mesh, segments.shape[1])
    far = spans_of(segments)
    near = spans_of(segments, window)

    def attend(form: Form, q: Array, k: Array, v: Array, local: Bool[Array, ""] | None) -> Array:
        k, v = divided.every_device_has_heads(k), divided.every_device_has_heads(v)
        match kernel:
            case "triton":
                spans = _chosen(form, near, far, local)
                how = _Triton(packed_triton.Scores(form.scale, form.soft_cap), divided, interpret)
                return _attend_triton(how, q, k, v, spans)
            case "cudnn":
                of_rows = partial(cudnn_attention.attend, form)
                return divided.run(of_rows, (q, k, v), segments, results="x")[0]
            case _:
                assert_never(kernel)

    return attend


def _chosen(form: Form, near: RowSpans, far: RowSpans, local: Bool[Array, ""] | None) -> RowSpans:
    if not form.window:
        return far
    if local is None:
        return near
    return RowSpans(*(jnp.where(local, one, other) for one, other in zip(near, far, strict=True)))


class _Divided(NamedTuple):
    """Layout on a mesh of the heads of rows of T tokens."""

    mesh: Mesh | None
    T: int

    def every_device_has_heads(self, x: Float[Array, "N K D"]) -> Float[Array, "N _ D"]:
        """Repeat keys or values if there are more devices than heads, so that each has some."""
        tensor = 1 if self.mesh is None else self.mesh.shape["tensor"]
        return jnp.repeat(x, tensor // x.shape[1], axis=1) if x.shape[1] < tensor else x

    def run(
        self,
        kernel: Callable[..., tuple[Array, ...]],
        heads: tuple[Array, ...],
        *of_rows: Array,
        sums: tuple[Array, ...] = (),
        results: str,
    ) -> tuple[Array, ...]:
        """Run a kernel on each device's part.

        Args:
            kernel: takes heads [B, T, H, D], arrays of rows [B, T], and sums [B, H, T].
            heads: [N, H, D]
            results: of the kernel: "x" for one like heads, "s" for one like sums.
        """
        whole = PartitionSpec(BATCH, "tensor")
        spec = {"x": whole, "s": whole}

        def local(heads: tuple[Array, ...], *others: Array) -> tuple[Array, ...]:
            rows = (x.reshape(-1, self.T, *x.shape[1:]) for x in heads)
            found = kernel(*rows, *others)
            return tuple(
                x.reshape(-1, *x.shape[2:]) if kind == "x" else x
                for kind, x in zip(results, found, strict=True)
            )

        if self.mesh is None or self.mesh.size == 1:
            return local(heads, *of_rows, *sums)
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(whole, *[PartitionSpec(BATCH)] * len(of_rows), *[whole] * len(sums)),
            out_specs=tuple(spec[kind] for kind in results),
            check_vma=False,  # it cannot follow a kernel's results
        )(heads, *of_rows, *sums)


class _Triton(NamedTuple):
    scores: packed_triton.Scores
    divided: _Divided
    interpret: bool


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_triton(how: _Triton, q: Array, k: Array, v: Array, spans: RowSpans) -> Array:
    return _forward(how, q, k, v, spans)[0]


def _forward(
    how: _Triton, q: Array, k: Array, v: Array, spans: RowSpans
) -> tuple[Array, tuple[Array, Array, Array, RowSpans, Array, Array]]:
    def kernel(q: Array, k: Array, v: Array, *spans: Array) -> tuple[Array, Array]:
        return packed_triton.forward(q, k, v, RowSpans(*spans), how.scores, interpret=how.interpret)

    found = how.divided.run(kernel, (q, k, v), *spans, results="xs")
    out, lse = (checkpoint_name(x, SAVED) for x in found)
    return out, (q, k, v, spans, out, lse)


def _backward(
    how: _Triton,
    kept: tuple[Array, Array, Array, RowSpans, Array, Array],
    upstream: Float[Array, "N H D"],
) -> tuple[Array, Array, Array, None]:
    q, k, v, spans, out, lse = kept

    def kernel(*arguments: Array) -> tuple[Array, ...]:
        q, k, v, out, upstream, first, last, lse = arguments
        return packed_triton.backward(
            *(q, k, v, RowSpans(first, last), out, lse, upstream, how.scores),
            interpret=how.interpret,
        )

    heads = (q, k, v, out, upstream)
    dq, dk, dv = how.divided.run(kernel, heads, *spans, sums=(lse,), results="xxx")
    return dq, dk, dv, None


_attend_triton.defvjp(_forward, _backward)
