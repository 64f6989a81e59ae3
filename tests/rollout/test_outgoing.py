"""Token batches of a dispatch put together again."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax import messages as m
from rlboost_jax.rollout.outgoing import token_batches
from rlboost_jax.settings.routing import Routing

ROUTING = Routing(num_layers=3, num_experts=9, experts_per_token=2)
rows = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=12)


def dispatch(rows: list[tuple[int, int]], *, routed: bool) -> SimpleNamespace:
    """Rows of so many tokens, and so many routes before theirs; all numbers differ."""
    tokens = sum(count for count, _ in rows)
    places = sum(sum(row) for row in rows)
    routes = np.arange(places * 6).astype(np.uint8).reshape(-1, *ROUTING.shape)
    return SimpleNamespace(
        version=3,
        request_ids=np.arange(len(rows), dtype=np.uint32) + 7,
        counts=np.array([count for count, _ in rows], np.uint16),
        tokens=np.arange(tokens, dtype=np.int32),
        logprobs=-np.arange(tokens, dtype=np.float32),
        leads=np.array([lead if routed else 0 for _, lead in rows], np.uint32),
        routes=routes if routed else None,
        prefilled_again=11,
    )


@given(rows, st.booleans(), st.sampled_from([1, 60, 150, 10**6]))
def test_the_parts_are_the_dispatch(rows, routed, most_bytes):
    whole = dispatch(rows, routed=routed)
    state = {"in_flight": 100, "running": 4, "waiting": 2}
    parts = list(token_batches(whole, sequence=5, most_bytes=most_bytes, **state))
    assert [part.sequence for part in parts] == list(range(5, 5 + len(parts)))
    for name in ("request_ids", "counts", "tokens", "logprobs"):
        assert b"".join(getattr(p, name) for p in parts) == getattr(whole, name).tobytes()
    assert sum(part.prefilled_again for part in parts) == 11
    left = len(whole.tokens)
    for part in parts:
        left -= len(part.tokens) // 4
        assert part.in_flight == 100 + left, "what follows can still be lost"
        size = len(part.tokens) + len(part.logprobs) + len(getattr(part, "routes", b""))
        assert size <= most_bytes or len(part.counts) == 2
    if routed:
        assert {type(part) for part in parts} == {m.RoutedTokenBatch}
        assert b"".join(part.routes for part in parts) == whole.routes.tobytes()
        assert b"".join(part.leads for part in parts) == whole.leads.tobytes()
    else:
        assert {type(part) for part in parts} == {m.TokenBatch}
    if most_bytes == 10**6:
        assert len(parts) == 1
