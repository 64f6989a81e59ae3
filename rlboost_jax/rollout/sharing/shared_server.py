"""Control of a shared server, between its tenants, its engine's thread and its manager.

Invariants: orders are carried out one after the other, each between two programs; what the manager
hears of sizes (`Capacity`) is emitted by the engine's thread, among the tokens; a tenant that is
gone wants nothing any more. All methods but those of `Turns` belong to the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from rlboost_jax.engine.shared import Resized, SharedEngine
from rlboost_jax.messages import Capacity, pack_ids
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.sharing.device_budget import (
    Budget,
    DeviceShare,
    allowed,
    ordered,
    passed,
    stepped,
    whole,
)
from rlboost_jax.rollout.sharing.pace import Pace
from rlboost_jax.rollout.sharing.slack import Due, Latencies, Shape
from rlboost_jax.rollout.sharing.tenant_protocol import BudgetOrder, State


class SharedServer:
    """Budget and pace of a shared server. Use as `Turns` of the worker; `serve` before it starts.

    Args:
        say: called with a line for the server's log.
    """

    def __init__(
        self,
        engine: SharedEngine,
        *,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        layout = engine.layout
        self._page_bytes = engine.device_state.pool_bytes // layout.num_pages
        self._page_tokens, self._clock, self._say = layout.page_size, clock, say
        self.most = DeviceShare(slots=engine.slots, pool_bytes=engine.device_state.pool_bytes)
        self.pace = Pace(
            Shape(
                max_steps=engine.programs.max_steps,
                decode_rows=layout.decode_rows,
                token_rows=layout.token_rows,
            ),
            starved=self._starve,
            clock=clock,
        )
        self._budget = whole(self.most)
        self._orders: dict[int, DeviceShare] = {}  # by tenant
        self._turn = asyncio.Lock()
        self._applied = self._state(None)
        self._worker: EngineWorker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thaw: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[State]] = set()

    def serve(self, worker: EngineWorker) -> None:
        """Serve the orders with this worker, from here on; called in the event loop."""
        self._worker, self._loop = worker, asyncio.get_running_loop()

    # What tenants say

    async def order(self, tenant: int, order: BudgetOrder) -> State:
        """Carry out an order, and return once it is.

        Raises what the engine does, or that its thread has ended.
        """
        most = self.most
        self._orders[tenant] = most.meet(
            DeviceShare(
                slots=most.slots if order.slots is None else order.slots,
                pool_bytes=most.pool_bytes if order.pool_bytes is None else order.pool_bytes,
            )
        )
        return await self._apply(self._wanted, f"a tenant ({tenant})")

    def queue(self, tenant: int, latencies: Latencies, dues: tuple[Due, ...]) -> None:
        """Replace a tenant's queue of work."""
        self.pace.said(tenant, latencies, dues)
        assert self._worker is not None
        self._worker.wake()

    def left(self, tenant: int) -> None:
        """Forget a tenant that has disconnected."""
        self.pace.gone(tenant)
        if self._orders.pop(tenant, None) is not None:
            self._later(self._wanted, "a tenant has left")
        if self._worker is not None:
            self._worker.wake()

    async def lend(self, lent: bool) -> None:
        """Leave the device to another run's server, or take it back; returns once it is so.

        Raises what the engine does, or that its thread has ended.
        """
        reason = "another run has the device" if lent else "this run has the device"
        await self._apply(lambda budget: replace(budget, lent=lent), reason)

    @property
    def now(self) -> float:
        """Seconds on the clock of dues."""
        return self._clock()

    @property
    def state(self) -> State:
        """The allowance as last applied."""
        return msgspec.structs.replace(
            self._applied, victims=0, tokens=0, freed_bytes=0, dispatches=0, seconds=0.0
        )

    # Turns: in the engine's thread

    def wait_seconds(self, engine: SharedEngine) -> float:
        return self.pace.wait_seconds(engine)

    def ended(self, engine: SharedEngine, dispatch: Any, seconds: float) -> None:
        plan = engine.last
        assert plan is not None
        steps = max((work.budget for work in plan.work), default=1)
        self.pace.ended(mixed=plan.mixed, rows=len(plan.work), steps=steps, seconds=seconds)

    def loaded(self, version: int) -> None:
        self._call(lambda: self._later(stepped, f"version {version} is loaded"))

    def _starve(self) -> None:
        """Hand back rollouts that get no device time: they are better off elsewhere."""

        def nothing(budget: Budget) -> Budget:
            none = DeviceShare(slots=0, pool_bytes=budget.granted.pool_bytes)
            shrunk = ordered(budget, budget.granted.meet(none), self._clock())
            return replace(shrunk, wanted=budget.wanted)

        self._call(lambda: self._later(nothing, "the tenants leave no time"))

    def _call(self, what: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    # Carrying out

    def _wanted(self, budget: Budget) -> Budget:
        return ordered(budget, allowed(self.most, self._orders.values()), self._clock())

    def _later(self, change: Callable[[Budget], Budget], reason: str) -> None:
        if self._loop is None or change(self._budget) == self._budget:
            return
        task = self._loop.create_task(self._apply(change, reason))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[State]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the worker's own failure ends the server

    async def _apply(self, change: Callable[[Budget], Budget], reason: str) -> State:
        async with self._turn:
            before, self._budget = self._budget, change(self._budget)
            budget = self._budget
            self._plan_thaw()
            if budget.in_use == before.in_use and budget.frozen == before.frozen:
                return self.state
            assert self._worker is not None
            began = self._clock()
            resize = partial(self._resize, budget=budget, reason=reason)
            done, before_it = self.pace.asked(partial(self._worker.resize, resize))
            resized, by_then = await asyncio.wrap_future(done)
            self._applied = state = self._state(
                resized, dispatches=by_then - before_it, seconds=self._clock() - began
            )
        self._say(
            f"shared: {state.slots} of {state.most_slots} slots, pages of {state.pool_bytes:,} of "
            f"{state.most_pool_bytes:,} bytes, {state.victims} rollouts handed back"
            f"{', no growth before the next step' if state.frozen else ''}: {reason}"
        )
        return state

    def _resize(
        self, engine: SharedEngine, *, budget: Budget, reason: str
    ) -> tuple[tuple[Resized, int], Capacity]:
        """Resize the engine, in its thread; returns the outcome and the dispatches ended by then.

        The event loop may hear of it only after the next ones.
        """
        share = budget.in_use
        resized = engine.resize(share.slots, share.pool_bytes // self._page_bytes)
        return (resized, self.pace.dispatches), Capacity(
            slots=resized.slots,
            cache_tokens=resized.num_pages * self._page_tokens,
            request_ids=pack_ids(resized.released),
            frozen=budget.frozen,
            reason=reason,
        )

    def _state(
        self, resized: Resized | None, *, dispatches: int = 0, seconds: float = 0.0
    ) -> State:
        most = self.most
        if resized is None:
            resized = Resized(
                slots=most.slots,
                num_pages=0,
                pool_bytes=most.pool_bytes,
                freed_bytes=0,
                released=(),
                tokens=0,
                moved_pages=0,
            )
        return State(
            slots=resized.slots,
            pool_bytes=resized.pool_bytes,
            most_slots=most.slots,
            most_pool_bytes=most.pool_bytes,
            frozen=self._budget.frozen,
            victims=len(resized.released),
            tokens=resized.tokens,
            freed_bytes=resized.freed_bytes,
            dispatches=dispatches,
            seconds=seconds,
        )

    def _plan_thaw(self) -> None:
        if self._thaw is not None:
            self._thaw.cancel()
            self._thaw = None
        at = self._budget.thaws_at
        if self._loop is not None and at < float("inf"):
            delay = max(0.0, at - self._clock())
            self._thaw = self._loop.call_later(
                delay, lambda: self._later(lambda b: passed(b, self._clock()), "no step for long")
            )
