"""Journal form of the tokens that one instance added to rollouts of a batch."""

import itertools
from typing import Any

import numpy as np

from rlboost_jax.manager.journal_entries import Collected, CollectedRouted
from rlboost_jax.manager.state.token_rows import TokenRows
from rlboost_jax.messages import pack_counts, pack_ids, unpack_ids

# Of a rollout in a batch: its sample, tokens it had before in all sequences, where the bytes of its
# new ones are, the number of routes before theirs, and all of these routes: 0 and none of a run
# without.
Piece = tuple[int, int, slice, int, bytes]


def collected(
    batch: int, name: str, server: str, rows: TokenRows, pieces: list[Piece], now: float
) -> Collected | CollectedRouted:
    samples, starts, parts, leads, routes = zip(*pieces, strict=True)
    fields: dict[str, Any] = {
        "batch": batch,
        "instance": name,
        "samples": pack_ids(samples),
        "starts": pack_ids(starts),
        "counts": pack_counts([(part.stop - part.start) // 4 for part in parts]),
        "tokens": b"".join([rows.raw[part] for part in parts]),
        "logprobs": b"".join([rows.logprobs[part] for part in parts]),
        "at": now,
        "server": server,
    }
    if not rows.routes:
        return Collected(**fields)
    return CollectedRouted(**fields, leads=pack_ids(leads), routes=b"".join(routes))


def routes_of(entry: Collected | CollectedRouted, counts: list[int]) -> list[bytes]:
    """Routes of each row of an entry."""
    if not isinstance(entry, CollectedRouted):
        return [b""] * len(counts)
    ends = np.cumsum(unpack_ids(entry.leads).astype(np.int64) + counts)
    ends *= len(entry.routes) // int(ends[-1])
    return [entry.routes[start:end] for start, end in itertools.pairwise([0, *ends.tolist()])]
