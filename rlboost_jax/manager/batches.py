"""A token batch taken apart and checked, before any of it is believed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.messages import TokenBatch

MAX_LOGPROB = 1e-3  # nats; above 0 by more than rounding is no logarithm of a probability


class MalformedBatch(ValueError):
    """A token batch that contradicts itself. What to change: the server that sent it."""


class Rows:
    """A token batch taken apart and checked.

    Raises `MalformedBatch` if lengths disagree, a token is outside the vocabulary or a
    log-probability is not one.
    """

    __slots__ = ("counts", "ids", "logprobs", "num_tokens", "raw", "tokens")

    def __init__(self, batch: TokenBatch, vocab_size: int) -> None:
        ids, counts = _array(batch.request_ids, "<u4"), _array(batch.counts, "<u2")
        self.tokens, logprobs = _array(batch.tokens, "<i4"), _array(batch.logprobs, "<f4")
        self.num_tokens = len(self.tokens)
        total = int(counts.sum(dtype=np.int64))
        if len(ids) != len(counts) or not total == self.num_tokens == len(logprobs):
            raise MalformedBatch(
                f"{len(ids)} rows, {len(counts)} counts adding up to {total}, "
                f"{self.num_tokens} tokens, {len(logprobs)} log-probabilities"
            )
        if min(batch.in_flight, batch.running, batch.waiting, batch.prefilled_again) < 0:
            raise MalformedBatch("a negative count")
        if self.num_tokens:
            low, high = int(self.tokens.min()), int(self.tokens.max())
            if low < 0 or high >= vocab_size:
                raise MalformedBatch(f"token {low if low < 0 else high} of 0..{vocab_size - 1}")
            if not (np.isfinite(logprobs).all() and float(logprobs.max()) <= MAX_LOGPROB):
                raise MalformedBatch("a log-probability that is above 0 or not finite")
        self.ids: list[int] = ids.tolist()
        self.counts: list[int] = counts.tolist()
        self.raw, self.logprobs = batch.tokens, batch.logprobs


def _array(data: bytes, dtype: str) -> NDArray[Any]:
    try:
        return np.frombuffer(data, dtype)
    except ValueError as error:
        raise MalformedBatch(f"{len(data)} bytes are no whole number of {dtype}") from error
