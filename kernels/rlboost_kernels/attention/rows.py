"""Which sequence each row of the packed token axis belongs to, and how far it sees."""

import jax.numpy as jnp
from jax import Array


def row_sequences(
    num_rows: int,  # T
    kv_lens: Array,  # i32[S]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array,  # i32[1]
) -> tuple[Array, Array]:  # i32[T], i32[T]
    """Sequence of each row and the number of its tokens the row may see, itself included.

    The last row of a sequence sees all `kv_lens` tokens, the one before it one less, and so
    on. Rows beyond `cu_q_lens[num_seqs]` get sequence 0 and see nothing. Entries of the
    arguments beyond `num_seqs` are not used.
    """
    S = kv_lens.shape[0]
    row_T = jnp.arange(num_rows, dtype=jnp.int32)
    in_use_S = jnp.arange(S, dtype=jnp.int32) < num_seqs[0]
    ended_ST = in_use_S[:, None] & (cu_q_lens[1:, None] <= row_T[None, :])
    sequence_T = ended_ST.sum(0, dtype=jnp.int32)
    real_T = sequence_T < num_seqs[0]
    sequence_T = jnp.where(real_T, sequence_T, 0)
    # The row after a sequence's last one would see one token more than it holds.
    visible_T = kv_lens[sequence_T] - (cu_q_lens[1:][sequence_T] - 1 - row_T)
    return sequence_T, jnp.where(real_T, visible_T, 0)
