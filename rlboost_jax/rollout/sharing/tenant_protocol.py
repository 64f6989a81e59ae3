"""Messages between a tenant of the device and a rollout server: JSON lines.

    {"type": "budget", "slots": 4, "pool_bytes": 100000000}
    {"type": "promise", "first_token_seconds": 0.5, "token_seconds": 0.05}
    {"type": "queue", "dues": [[0.41, 0.02, true], [0.03, 0.01, false]]}
    {"type": "state"}

A budget, a promise and a state are answered by one line, in order; a queue is not. What a tenant
has said counts as long as its connection lasts.
"""

from typing import Annotated, Final

import msgspec

MAX_LINE_BYTES: Final = 256 * 1024
MAX_DUES: Final = 4096

Slots = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600.0)]
# A due may have passed, and a need may be none.
Offset = Annotated[float, msgspec.Meta(ge=-3600.0, le=3600.0)]
Need = Annotated[float, msgspec.Meta(ge=0, le=3600.0)]


class BudgetOrder(msgspec.Struct, frozen=True, kw_only=True, tag="budget", tag_field="type"):
    """Limits on what the server may use from now on; omitted parts are unlimited."""

    slots: Slots | None = None
    pool_bytes: Bytes | None = None  # of pages of keys and values


class Promise(msgspec.Struct, frozen=True, kw_only=True, tag="promise", tag_field="type"):
    """Latencies that the tenant promises to its clients."""

    first_token_seconds: Seconds
    token_seconds: Seconds  # from one token to the next


class TenantQueue(msgspec.Struct, frozen=True, kw_only=True, tag="queue", tag_field="type"):
    """The tenant's whole queue of work, replacing the one before.

    For each request: seconds until its next token is due; seconds of the device that the tenant
    needs before, all earlier work included; whether the token is the first of its response.
    """

    dues: Annotated[tuple[tuple[Offset, Need, bool], ...], msgspec.Meta(max_length=MAX_DUES)]


class StateAsked(msgspec.Struct, frozen=True, kw_only=True, tag="state", tag_field="type"):
    """Request for the server's state."""


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state", tag_field="type"):
    """What the server uses now.

    In answer to a budget: sent once that holds and memory is returned.
    """

    slots: int
    pool_bytes: int
    most_slots: int
    most_pool_bytes: int
    frozen: bool  # it grows with the next step
    victims: int = 0  # rollouts handed back for this order
    tokens: int = 0  # that these have, to be run anew elsewhere
    freed_bytes: int = 0
    dispatches: int = 0  # that ended before it was carried out
    seconds: float = 0.0


class OrderRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="type"):
    """Answer to an invalid line, after which the connection ends."""

    reason: str


Order = BudgetOrder | Promise | TenantQueue | StateAsked
Answer = State | OrderRefused

decode_order = msgspec.json.Decoder(Order).decode
decode_answer = msgspec.json.Decoder(Answer).decode
encode_line = msgspec.json.Encoder().encode
