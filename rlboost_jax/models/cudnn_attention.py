"""NVIDIA's own attention kernels over packed rows, by way of a private module of jax.

`jax.nn.dot_product_attention(implementation="cudnn")` calls the same kernels but hides what tells
them where sequences begin. None of it runs without a GPU and cuDNN; tests cover the arguments, and
that programs compile.

cuDNN takes a table of sequences whose size is part of the program. Its backward pass adds up the
gradients of queries in any order, unless XLA is asked for equal bits
(`--xla_gpu_deterministic_ops=true`).
"""

from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rlboost_jax.models.chunked_attention import Form, attend_chunked
from rlboost_jax.settings.model_config import ModelConfig

# Sequences that the table of a row has room for. The forward pass leaves a float32 for each of
# them, each head and each token.
MOST_SEQUENCES: Final = 64
MOST_HEAD_DIM: Final = 128  # up to which all versions have a backward pass

# Until then jax counted where a sequence's keys begin in heads of queries, and read others':
# https://github.com/jax-ml/jax/pull/39521
_GROUPED_SINCE = (0, 12)


class Table(NamedTuple):
    """Lengths and starts of M sequences in each of B rows, in order, and -1 where there is none."""

    lengths: Int[Array, "B M"]
    starts: Int[Array, "B M+1"]  # places in the row


def why_not(config: ModelConfig) -> str:
    """Why the kernels cannot run a model's heads; "" if they can."""
    if config.dtype not in ("bfloat16", "float16"):
        return f"cudnn takes bfloat16 and float16 and model.dtype is {config.dtype}"
    if config.head_dim % 8 or config.head_dim > MOST_HEAD_DIM:
        return f"head dim is {config.head_dim}; cudnn takes multiples of 8 up to {MOST_HEAD_DIM}"
    if config.attention_soft_cap:
        return "cudnn has no soft caps"
    if any(config.layer_windows):
        return "cudnn is not used for windows"
    return ""


def attend(
    form: Form,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B T K D"],
    v: Float[Array, "B T K D"],
    segments: Int[Array, "B T"],
) -> tuple[Float[Array, "B T H D"]]:
    """Attend with cuDNN, or with `attend_chunked` if a row has more sequences than the table."""
    B, T = segments.shape

    def in_blocks(q: Array, k: Array, v: Array) -> Array:
        flat = (x.reshape(B * T, *x.shape[2:]) for x in (q, k, v))
        return attend_chunked(form, *flat, segments, None).reshape(q.shape)

    most = min(MOST_SEQUENCES, T)
    table = table_of(segments, most)
    num_sequences = 1 + (segments[:, 1:] != segments[:, :-1]).sum(axis=1)
    fused = partial(_dot_product_attention, form.scale, table)
    return (jax.lax.cond((num_sequences <= most).all(), fused, in_blocks, q, k, v),)


def table_of(segments: Int[Array, "B T"], most: int) -> Table:
    """Table of rows that have at most `most` sequences."""
    T = segments.shape[1]
    changes = segments[:, 1:] != segments[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    find = partial(jnp.nonzero, size=most + 1, fill_value=-1)
    starts = jax.vmap(lambda row: find(row)[0])(begins).astype(jnp.int32)
    ends = jnp.where(starts[:, 1:] < 0, T, starts[:, 1:])
    lengths = jnp.where(starts[:, :-1] < 0, -1, ends - starts[:, :-1])
    return Table(lengths, starts)


def _dot_product_attention(scale: float, table: Table, q: Array, k: Array, v: Array) -> Array:
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    G = q.shape[2] // k.shape[2]
    if jax.__version_info__ < _GROUPED_SINCE:
        k, v = (jnp.repeat(x, G, axis=2) for x in (k, v))
    attended: Any = cudnn.dot_product_attention(
        q,
        k,
        v,
        q_seqlen=table.lengths,
        kv_seqlen=table.lengths,
        q_offsets=table.starts,
        kv_offsets=table.starts,
        scale=scale,
        mask_type=cudnn.MaskType.PADDING_CAUSAL,
    )
    return attended
