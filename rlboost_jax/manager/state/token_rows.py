"""Decoding and checking of a token batch, before any of it is believed."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.manager.state.rollouts import Rollout
from rlboost_jax.messages import RoutedTokenBatch, TokenBatch
from rlboost_jax.settings.routing import Routing

# Reductions by their names: for a few tokens, methods take as long as the work. (Types of NumPy 2.5
# do not know that they may be called without `out`.)
_LEAST: Any = np.minimum.reduce
_MOST: Any = np.maximum.reduce
_ANY: Any = np.logical_or.reduce

MAX_LOGPROB = 1e-3  # nats; above 0 by more than rounding is no logarithm of a probability


class MalformedBatch(ValueError):
    """A token batch that contradicts itself. What to change: the server that sent it."""


class TokenRows:
    """A decoded and checked token batch.

    Raises `MalformedBatch` if lengths disagree, a token is outside the vocabulary, a
    log-probability is not one or a route leads nowhere.
    """

    __slots__ = ("counts", "ids", "leads", "logprobs", "num_tokens", "raw", "routes", "tokens")

    def __init__(self, batch: TokenBatch, vocab_size: int, routing: Routing | None = None) -> None:
        ids, counts = _array(batch.request_ids, "<u4"), _array(batch.counts, "<u2")
        self.tokens, logprobs = _array(batch.tokens, "<i4"), _array(batch.logprobs, "<f4")
        self.num_tokens = len(self.tokens)
        self.ids: list[int] = ids.tolist()
        self.counts: list[int] = counts.tolist()
        total = sum(self.counts)
        if len(ids) != len(counts) or not total == self.num_tokens == len(logprobs):
            raise MalformedBatch(
                f"{len(ids)} rows, {len(counts)} counts adding up to {total}, "
                f"{self.num_tokens} tokens, {len(logprobs)} log-probabilities"
            )
        if min(batch.in_flight, batch.running, batch.waiting, batch.prefilled_again) < 0:
            raise MalformedBatch("a negative count")
        if self.num_tokens:
            low, high = int(_LEAST(self.tokens)), int(_MOST(self.tokens))
            if low < 0 or high >= vocab_size:
                raise MalformedBatch(f"token {low if low < 0 else high} of 0..{vocab_size - 1}")
            # Not a number is neither above the least nor below the most.
            least, most = _LEAST(logprobs), _MOST(logprobs)
            if not (least > -math.inf and float(most) <= MAX_LOGPROB):
                raise MalformedBatch("a log-probability that is above 0 or not finite")
        self.raw, self.logprobs = batch.tokens, batch.logprobs
        self.leads: list[int] = []  # of a run without routes
        self.routes: list[bytes] = []  # of each row
        if isinstance(batch, RoutedTokenBatch):
            if routing is None:
                raise MalformedBatch("routes that nobody asked for")
            self._take_routes(batch, routing)
        elif routing is not None and self.num_tokens:
            raise MalformedBatch("tokens without routes")

    def route_error(self, held: Mapping[int, Rollout]) -> str:
        """Missing or superfluous routes for the rollouts they belong to; "" if none."""
        for request_id, lead in zip(self.ids, self.leads, strict=False):
            rollout = held.get(request_id)
            if rollout is None or rollout.dormant:
                continue
            due = rollout.transcript.lead
            if lead != due:
                return f"{lead} routes before the tokens of request {request_id}, not {due}"
        return ""

    def _take_routes(self, batch: RoutedTokenBatch, routing: Routing) -> None:
        leads: list[int] = _array(batch.leads, "<u4").tolist()
        rows = len(self.counts)
        if len(leads) != rows or len(set(self.ids)) != rows or 0 in self.counts:
            raise MalformedBatch(
                f"{len(leads)} leads for {rows} rows, or a row that is empty or there twice"
            )
        size, end, ends = routing.route_bytes, 0, [0]
        for lead, count in zip(leads, self.counts, strict=True):
            end += size * (lead + count)
            ends.append(end)
        if end != len(batch.routes):
            raise MalformedBatch(f"{len(batch.routes)} bytes of routes, not {end}")
        _check_experts(np.frombuffer(batch.routes, routing.dtype), routing)
        self.leads = leads
        self.routes = [batch.routes[start:end] for start, end in itertools.pairwise(ends)]


def _check_experts(ids: NDArray[Any], routing: Routing) -> None:
    """Raise unless all ids are experts, and those chosen in one layer are distinct."""
    if len(ids) and int(ids.max()) >= routing.num_experts:
        raise MalformedBatch(f"expert {ids.max()} of 0..{routing.num_experts - 1}")
    columns = np.ascontiguousarray(ids.reshape(-1, routing.experts_per_token).T)
    pairs = itertools.combinations(columns, 2)
    if any(_ANY(one == other) for one, other in pairs):
        raise MalformedBatch("an expert that is chosen twice")


def _array(data: bytes, dtype: str) -> NDArray[Any]:
    try:
        return np.frombuffer(data, dtype)
    except ValueError as error:
        raise MalformedBatch(f"{len(data)} bytes are no whole number of {dtype}") from error
