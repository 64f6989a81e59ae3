"""Limits of one listener on its clients: one record each, made where it listens.

A limit on each connection alone bounds nothing: a hundred of them may each be at theirs. So every
record has a sum beside each part, and `peak_bytes` is what all of them can make a process hold at
once. No clock or socket inside.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

OWNER: Final = ""  # the listener's own credential: nothing but the sums holds for it

READ_BYTES: Final = 2**16  # aiohttp stops reading a connection at twice as much
# Measured and rounded up, for a connection with a body that nobody reads: 240 KiB in plain and
# 900 KiB with TLS, whose buffers alone are 300 KiB.
CONNECTION_BYTES: Final = 2**20

_MAY_BE_NOTHING: Final = (
    *("message_bytes", "credential_bytes", "total_bytes"),  # of one that takes and keeps nothing
    *("peak_of_one", "unsent_bytes", "owner_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener.

    Attributes:
        name: of the listener, for lines that refuse somebody.
        setting: what raises `total_bytes`; "": it is fixed.
        connections: open at a time, of those that have shown a credential.
        credential_connections: of these, with one and the same credential.
        newcomers: connections that have not shown one yet. The oldest goes when one more comes.
        newcomer_seconds: from the connection to a request with a credential.
        handshake_seconds: of TLS.
        idle_seconds: between two requests.
        message_bytes: of one body, frame or line.
        total_bytes: of unfinished messages, of those at work and of answers not yet taken, in sum.
        credential_bytes: of these, for one and the same credential.
        connection_bytes: of memory for a connection by itself.
        held_per_byte: bytes of memory for one of those, decoded.
        peak_of_one: bytes while a single message is decoded; one is decoded at a time.
        unsent_bytes: of messages that wait for peers who do not read, in sum.
        owner_bytes: that the owner's credential can have the process hold besides.
    """

    name: str
    setting: str = ""
    connections: int
    credential_connections: int
    newcomers: int
    newcomer_seconds: float
    handshake_seconds: float
    idle_seconds: float
    message_bytes: int
    total_bytes: int
    credential_bytes: int
    connection_bytes: int = CONNECTION_BYTES
    held_per_byte: int = 1
    peak_of_one: int = 0
    unsent_bytes: int = 0
    owner_bytes: int = 0

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            if isinstance(value, str):
                continue
            if not (0 < value < math.inf or (value == 0 and field in _MAY_BE_NOTHING)):
                raise ValueError(f"{self.name}: {field} is {value}; every listener has limits")
        if self.credential_connections > self.connections:
            raise ValueError(f"{self.name}: one credential may open more than there are")
        if not self.message_bytes <= self.credential_bytes <= self.total_bytes:
            raise ValueError(
                f"{self.name}: a message of {self.message_bytes}, {self.credential_bytes} for a "
                f"credential and {self.total_bytes} in sum are not in this order"
            )

    @property
    def credential_peak_bytes(self) -> int:
        """Bytes one credential other than the owner's can make the process hold at once."""
        connections = (self.credential_connections + self.newcomers) * self.connection_bytes
        held = self.held_per_byte * self.credential_bytes + self.unsent_bytes
        return connections + held + self.peak_of_one

    @property
    def peak_bytes(self) -> int:
        """Bytes that all clients together, the owner included, can make the process hold."""
        connections = (self.connections + self.newcomers) * self.connection_bytes
        held = self.held_per_byte * self.total_bytes + self.unsent_bytes
        return connections + held + self.peak_of_one


class ByteBudget:
    """Bytes that one listener holds for its clients now.

    Args:
        freed: called after some were returned.
    """

    def __init__(self, limits: ListenerLimits, freed: Callable[[], None] = lambda: None) -> None:
        self.limits, self._freed = limits, freed
        self._held: dict[str, int] = {}
        self.total = 0

    def held(self, credential: str) -> int:
        return self._held.get(credential, 0)

    def take(self, credential: str, size: int) -> str:
        """Hold `size` more bytes for a credential; returns "", or why it cannot be."""
        limits = self.limits
        if credential != OWNER and self.held(credential) + size > limits.credential_bytes:
            return self._line("for one credential", limits.credential_bytes)
        if self.total + size > limits.total_bytes:
            return self._line("at a time", limits.total_bytes)
        self._held[credential] = self.held(credential) + size
        self.total += size
        return ""

    def give(self, credential: str, size: int) -> None:
        """Return bytes that were taken."""
        left = self._held[credential] - size
        assert left >= 0, "more is returned than was taken"
        if left:
            self._held[credential] = left
        else:
            del self._held[credential]
        self.total -= size
        self._freed()

    def _line(self, what: str, most: int) -> str:
        name, setting = self.limits.name, self.limits.setting
        raised = f" ({setting})" if setting else ""
        return f"the {name} holds at most {most:,} bytes {what}{raised}; try again later"
