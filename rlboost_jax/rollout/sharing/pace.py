"""Before each program of a shared engine: may it run, how much of it, or when to ask again.

Written to from the event loop (what a tenant says) and asked by the engine's thread.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from rlboost_jax.engine.costs import Costs
from rlboost_jax.engine.program_plans import ProgramAllowance
from rlboost_jax.engine.shared import Wants
from rlboost_jax.rollout.sharing.slack import Due, Latencies, Shape, allowance, most_idle, slack
from rlboost_jax.rollout.sharing.turns import AGAIN_SECONDS

T = TypeVar("T")

STARVED_SECONDS: Final = 5.0  # without room for any program: what is held is handed back


class PacedEngine(Protocol):
    """Part of `rlboost_jax.engine.shared.SharedEngine` that is needed here."""

    @property
    def wants(self) -> Wants: ...
    def allow(self, allowance: ProgramAllowance | None) -> None: ...


class Pace:
    """Permission for a shared engine's programs, by what other tenants need.

    Args:
        starved: called once where nothing was allowed for too long, in the engine's thread.
        clock: seconds; the tenant's dues are on it.

    Attributes:
        dispatches: that ended.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        starved: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shape, self._starved, self._clock = shape, starved, clock
        self._lock = threading.Lock()
        self._tenants: dict[int, tuple[Latencies, tuple[Due, ...]]] = {}
        self._costs = Costs()
        self._denied_at = math.inf
        self.dispatches = 0
        self.denied = 0

    def said(self, tenant: int, latencies: Latencies, dues: tuple[Due, ...]) -> None:
        """Replace a tenant's queue of work."""
        with self._lock:
            self._tenants[tenant] = latencies, dues

    def gone(self, tenant: int) -> None:
        with self._lock:
            self._tenants.pop(tenant, None)

    def wait_seconds(self, engine: PacedEngine) -> float:
        """Seconds until to ask again; 0: a program may run, which the engine learns."""
        with self._lock:
            tenants = list(self._tenants.values())
        if not tenants:
            engine.allow(None)
            return 0.0
        wants, now = engine.wants, self._clock()
        if not wants.ready and not wants.prefill_tokens:
            return 0.0  # it has nothing to do, and will find that out
        seconds = min(min(slack(t, dues, now), most_idle(t)) for t, dues in tenants)
        found = allowance(seconds, wants, self._costs, self._shape)
        if found is not None:
            self._denied_at = math.inf
            engine.allow(found)
            return 0.0
        self.denied += 1
        self._denied_at = min(self._denied_at, now)
        if now - self._denied_at > STARVED_SECONDS:
            self._denied_at = math.inf
            self._starved()
        return AGAIN_SECONDS

    def asked(self, ask: Callable[[], T]) -> tuple[T, int]:
        """Call `ask`; return its result and the number of dispatches ended by then.

        None ends in between, so at most one more ends before the engine's thread does what is asked
        here.
        """
        with self._lock:
            return ask(), self.dispatches

    def ended(self, *, mixed: bool, rows: int, steps: int, seconds: float) -> None:
        """Record a program that ran for `seconds`.

        Args:
            rows: rollouts in it.
            steps: decode steps that it did.
        """
        with self._lock:
            self.dispatches += 1
        if mixed:
            self._costs = self._costs.mixed_took(seconds)
            return
        sizes = self._shape.decode_rows
        size = next((size for size in sizes if size >= rows), sizes[-1])
        self._costs = self._costs.steps_took(size, max(1, steps), seconds)
