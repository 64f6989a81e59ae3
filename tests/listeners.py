"""Limits of a listener, for tests of one limit."""

from typing import Any

from rlboost_jax.trust.listener_limits import ListenerLimits
from tests.patience import PATIENCE_SECONDS


def limits_of(**given: Any) -> ListenerLimits:
    """Limits that no test meets by chance, but for those that are given."""
    connections = given.get("connections", 100)
    wide = dict(
        name="listener",
        connections=connections,
        credential_connections=connections,
        newcomers=100,
        newcomer_seconds=PATIENCE_SECONDS,
        handshake_seconds=PATIENCE_SECONDS,
        idle_seconds=PATIENCE_SECONDS,
        message_bytes=2**20,
        credential_bytes=2**24,
        total_bytes=2**26,
    )
    return ListenerLimits(**{**wide, **given})
