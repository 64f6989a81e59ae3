"""Token batches of a dispatch, cut to fit their frames."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.messages import (
    TOKEN_BATCH_BYTES,
    RoutedTokenBatch,
    TokenBatch,
    pack_counts,
    pack_ids,
    pack_logprobs,
    pack_tokens,
)
from rlboost_jax.sequences.identities import Version

_TOKEN_BYTES = 4 + 4  # token and log-probability


class DispatchDrafts(Protocol):
    """What the drafts of one dispatch came to."""

    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def steps_saved(self) -> float: ...


class DispatchLike(Protocol):
    """Tokens of one dispatch; row i has `counts[i]` of them, concatenated."""

    version: int
    request_ids: NDArray[np.uint32]
    counts: NDArray[np.uint16]
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    leads: NDArray[np.uint32]  # row i has `leads[i] + counts[i]` routes
    routes: NDArray[np.unsignedinteger] | None  # [routes, layers, experts], concatenated
    prefilled_again: int
    discarded: int
    drafts: DispatchDrafts | None


def token_batches(
    dispatch: DispatchLike, *, sequence: int, most_bytes: int = TOKEN_BATCH_BYTES, **state: int
) -> Iterator[TokenBatch]:
    """Encode a dispatch, nearly always as one batch; routes of long prompts make more.

    Args:
        sequence: of the first.
        most_bytes: of a batch with more than one row.
        state: `in_flight`, `running` and `waiting` of the engine.
    """
    counts = dispatch.counts.astype(np.int64)
    with_leads = counts + dispatch.leads
    route_bytes = 0 if dispatch.routes is None else dispatch.routes[:1].nbytes
    starts = _starts((counts * _TOKEN_BYTES + with_leads * route_bytes).tolist(), most_bytes)
    tokens, routes = (np.cumsum([0, *each.tolist()]) for each in (counts, with_leads))
    in_flight = state.pop("in_flight")
    for index, (start, stop) in enumerate(zip(starts, [*starts[1:], len(counts)], strict=True)):
        fields: dict[str, Any] = {
            "sequence": sequence + index,
            "version": dispatch.version,
            "request_ids": pack_ids(dispatch.request_ids[start:stop]),
            "counts": pack_counts(dispatch.counts[start:stop]),
            "tokens": pack_tokens(dispatch.tokens[tokens[start] : tokens[stop]]),
            "logprobs": pack_logprobs(dispatch.logprobs[tokens[start] : tokens[stop]]),
            "in_flight": in_flight + int(tokens[-1] - tokens[stop]),
            "prefilled_again": 0 if index else dispatch.prefilled_again,
            **state,
        }
        if dispatch.routes is None:
            yield TokenBatch(**fields)
            continue
        yield RoutedTokenBatch(
            **fields,
            leads=pack_ids(dispatch.leads[start:stop]),
            routes=dispatch.routes[routes[start] : routes[stop]].tobytes(),
        )


def _starts(sizes: Sequence[int], most: int) -> list[int]:
    """First rows of batches that have at most `most` bytes, or a single row."""
    starts, filled = [0], 0
    for row, size in enumerate(sizes):
        if filled and filled + size > most:
            starts.append(row)
            filled = 0
        filled += size
    return starts


def nothing_sampled(sequence: int, version: Version, **state: int) -> TokenBatch:
    """Token batch without tokens."""
    return TokenBatch(
        sequence=sequence,
        version=version,
        request_ids=b"",
        counts=b"",
        tokens=b"",
        logprobs=b"",
        prefilled_again=0,
        **state,
    )
