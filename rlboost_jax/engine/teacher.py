"""Logits of every position of given sequences, through the engine's own pages and layers.

What sampling would have seen had it chosen these tokens: for checks of a checkpoint and of the
engine, not for speed.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.engine_rollouts import rollout_of_tokens
from rlboost_jax.engine.step_inputs import Chunk
from rlboost_jax.messages import Sampling

# Nothing is sampled: all tokens are given.
_SAMPLING: Final = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=1, stop_ids=())


def teacher_forced_logits(
    engine: Engine, tokens: Int[np.ndarray, "B T"]
) -> Float[np.ndarray, "B T V"]:
    """Entry [b, t] is of the token after `tokens[b, :t + 1]`; float32.

    Sequences run side by side in as many slots as there are, in chunks that end where a program's
    rows end, so that most of them are cut somewhere.

    Raises:
        EngineBusy: rollouts are held.
        ValueError: sequences are longer than a slot, or a token is not in the vocabulary.
    """
    (B, T), vocab_size = tokens.shape, engine.programs.model.vocab_size
    if engine.slot_tokens <= T:
        raise ValueError(
            f"sequences have {T} tokens; a slot of {engine.slot_tokens} holds one less"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise ValueError(
            f"tokens are {tokens.min()} to {tokens.max()}; the vocabulary has ids 0 to "
            f"{vocab_size - 1}"
        )
    logits = np.empty((B, T, vocab_size), np.float32)
    pages_per_slot = engine.layout.pages_per_slot
    together = min(engine.slots, engine.layout.num_pages // pages_per_slot)
    for first in range(0, B, together):
        pool = engine.lend_pages()
        rollouts = {
            b: rollout_of_tokens(tokens[b], engine.layout, _SAMPLING)
            for b in range(first, min(first + together, B))
        }
        for rollout in rollouts.values():
            rollout.take_pages(pool.alloc(pages_per_slot))
        for pieces in _filled(engine.layout.token_rows, list(rollouts), T):
            chunks = [rollouts[b].chunk(start, count, 0) for b, start, count in pieces]
            rows = _run(engine, chunks)
            for b, start, count in pieces:
                logits[b, start : start + count], rows = rows[:count], rows[count:]
    return logits


def _filled(rows: int, sequences: list[int], length: int) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces (sequence, start, count) of programs whose rows are full as far as possible."""
    pieces: list[tuple[int, int, int]] = []
    left = rows
    for sequence in sequences:
        start = 0
        while start < length:
            count = min(left, length - start)
            pieces.append((sequence, start, count))
            start, left = start + count, left - count
            if left == 0:
                yield pieces
                pieces, left = [], rows
    if pieces:
        yield pieces


def _run(engine: Engine, chunks: list[Chunk]) -> NDArray[np.float32]:
    packed = step_inputs.pack_mixed(engine.layout, chunks)
    engine.device_state.pools, logits = engine.programs.logits(
        engine.parameters.leaves, engine.device_state.pools, packed
    )
    return np.asarray(logits)
