"""Limits of a gateway on its clients: fixed bounds, and those a person may set."""

from dataclasses import dataclass
from typing import Final, Literal

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_CONNECTIONS,
    NEWCOMER_SECONDS,
)
from rlboost_jax.trust.listener_limits import ListenerLimits

Concurrent = Literal["queue", "refuse"]

MAX_BODY_BYTES: Final = 16 * 2**20
MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 256
MAX_STOPS: Final = 16  # strings
MAX_STOP_CHARS: Final = 200
MAX_PARTS: Final = 1024  # of a message's content
MAX_DEPTH: Final = 64  # of lists in lists of a body
MAX_KEY: Final = 256  # of a session's id, of an idempotency key
MAX_QUEUED: Final = 16  # calls that wait in one session
SESSION_CONNECTIONS: Final = 2 * MAX_QUEUED  # of one session: calls, and some that broke
SESSION_BYTES: Final = 4 * MAX_BODY_BYTES
HELD_PER_BYTE: Final = 10  # of memory, of what is counted by `decoded_bytes`
VALUE_BYTES: Final = 10
NUMBER_BYTES: Final = 4
MAX_VALUES: Final = 500_000  # of a body, besides numbers
DECODED_BYTES: Final = 40 * MAX_BODY_BYTES  # of the worst body, until it is refused


@dataclass(frozen=True, kw_only=True)
class GatewayLimits:
    """Limits on clients that a person may set.

    Attributes:
        max_sessions: that are open at a time.
        max_turns: of a session.
        turn_tokens: that may be sampled in one turn; 0: what fits the slot.
        turn_seconds: that one turn may take before its call fails.
        idle_seconds: that a session is kept for without a call.
        concurrent: what becomes of a call that comes while another of its session is under way:
            it waits for its turn, in order of arrival, or is refused. An equal call is neither:
            it gets the same turn.
        held_bytes: of all bodies and answers of calls under way, in sum.
    """

    max_sessions: int = 1024
    max_turns: int = 1000
    turn_tokens: int = 0
    turn_seconds: float = 600.0
    idle_seconds: float = 3600.0
    concurrent: Concurrent = "queue"
    held_bytes: int = 256 * 2**20

    def check(self) -> None:
        """Validate the limits. Raises ConfigError."""
        if self.held_bytes < SESSION_BYTES:
            raise ConfigError(
                f"--held_bytes={self.held_bytes}: one session alone may hold {SESSION_BYTES:,}; "
                "give at least that"
            )


def listener_limits(limits: GatewayLimits) -> ListenerLimits:
    """Limits of one gateway's listener. Its weakest credential is the token of one session."""
    return ListenerLimits(
        name="gateway",
        setting="--held_bytes",
        connections=min(MAX_CONNECTIONS, limits.max_sessions + 1_024),
        credential_connections=SESSION_CONNECTIONS,
        newcomers=256,
        newcomer_seconds=NEWCOMER_SECONDS,
        handshake_seconds=HANDSHAKE_SECONDS,
        idle_seconds=KEEP_ALIVE_SECONDS,
        message_bytes=MAX_BODY_BYTES,
        credential_bytes=SESSION_BYTES,
        total_bytes=limits.held_bytes,
        held_per_byte=HELD_PER_BYTE,
        peak_of_one=DECODED_BYTES,
    )
