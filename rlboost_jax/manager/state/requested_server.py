"""An instance that was requested of the provider."""

import math
from dataclasses import dataclass

from rlboost_jax.providers.base import ANY_POOL


@dataclass(slots=True)
class Server:
    """An instance that was requested of the provider, until it is over."""

    name: str
    nonce: str  # with which it was asked for, and which its `Hello` echoes
    machine: str  # "" if it was found and no machine has been lent for it yet
    pool: str = ANY_POOL
    granted: bool = False  # it is paid for
    joined: bool = False
    proved: bool = False  # has given tokens
    doomed: bool = False  # terminated
    withdrawal: tuple[float, str] | None = None  # when its owner takes the machine back, and why
    started_at: float = math.inf  # asked for; inf: it gives tokens, or was found
    dismissed: bool = False  # doomed for want of work: it is to leave, and not to come again
    anew: bool = False  # takes the place of one that was
    joined_at: float = math.inf
    taken: bool = False  # the market takes it
    failed: bool = False  # ended by itself: even if it gave tokens, its machine is to rest
