"""What a gateway takes from its clients: fixed bounds, and what a person may set."""

from dataclasses import dataclass
from typing import Final, Literal

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


@dataclass(frozen=True, kw_only=True)
class GatewayLimits:
    """
    Attributes:
        max_sessions: that are open at a time.
        max_turns: of a session.
        turn_tokens: that may be sampled in one turn; 0: what fits the slot.
        turn_seconds: that one turn may take before its call fails.
        idle_seconds: that a session is kept for without a call.
        concurrent: what becomes of a call that comes while another of its session is under way:
            it waits for its turn, in order of arrival, or is refused. An equal call is neither:
            it gets the same turn.
    """

    max_sessions: int = 1024
    max_turns: int = 1000
    turn_tokens: int = 0
    turn_seconds: float = 600.0
    idle_seconds: float = 3600.0
    concurrent: Concurrent = "queue"
