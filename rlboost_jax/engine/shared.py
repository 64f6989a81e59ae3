"""An engine on a shared device: others can leave it fewer slots and less memory.

Beyond what `Engine` promises:

- Between two programs it can be resized to any number of slots and to a few sizes of its page pool.
  What has no room then is named and forgotten; the others go on where they are.
- The bytes of a smaller pool are all that is left allocated of it when `resize` returns. Nothing is
  compiled for it: every size has its programs from `warm_up` on.
- `begin` launches one program and no more, of what it was allowed (`allow`).

How many slots and pages there are changes no bit of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.program_plans import ProgramAllowance, ProgramPlan
from rlboost_jax.engine.requests import EngineBusy
from rlboost_jax.engine.victims import Occupant, victims

POOL_SIZES = 3  # whole, half, quarter


@dataclass(frozen=True, kw_only=True)
class Resized:
    """Outcome of a resize: the rollouts that had to go."""

    slots: int
    num_pages: int
    pool_bytes: int
    freed_bytes: int  # negative: taken
    released: tuple[int, ...]  # request ids, no longer held
    tokens: int  # that these have, to be run anew elsewhere
    moved_pages: int


@dataclass(frozen=True, kw_only=True)
class Wants:
    """Work that a shared engine would run next, if it was allowed to."""

    ready: int  # rollouts that would sample
    prefill_tokens: int  # known tokens that are not in pages yet, at most


class SharedEngine(Engine):
    """An engine whose slots and memory other tenants of its device can reduce.

    Attributes:
        pool_sizes: in pages, the largest first; 0, no pool at all, is possible too.
        num_pages: that there are now.
        last: program that was launched; None: none was.
    """

    def __init__(self, *args: Any, num_pool_sizes: int = POOL_SIZES, **settings: Any) -> None:
        """Args:
        num_pool_sizes: each half of the one before, none with less than one longest rollout.
        args, settings: of `Engine`.
        """
        super().__init__(*args, **settings)
        self.pool_sizes = pool_sizes(
            self.layout.num_pages, least=self.layout.pages_per_slot, count=num_pool_sizes
        )
        self.num_pages = self.layout.num_pages
        self.last: ProgramPlan | None = None
        self.texts.most_earlier = 0  # under an allowance there are no drafts

    @property
    def slots_left(self) -> int:
        """Number of slots that may be filled after the last resize."""
        return self._scheduler.slots

    @property
    def wants(self) -> Wants:
        scheduler = self._scheduler
        running = scheduler.running
        free = min(len(scheduler.waiting), scheduler.slots - len(running))
        entering = [scheduler.waiting[n] for n in range(free)]
        behind = [r.known - 1 - r.computed for r in running if not r.ready]
        return Wants(
            ready=sum(rollout.ready for rollout in running),
            prefill_tokens=sum(behind) + sum(rollout.known - 1 for rollout in entering),
        )

    def warm_up(self, announce: Callable[[str], None] | None = None) -> None:
        """Compile every program for every size of the pool, and the ways from each to each."""
        say = announce or (lambda _: None)
        super().warm_up(say)
        for size in self.pool_sizes[1:]:
            say(f"a pool of {size} pages:")
            self.device_state.resize(size)
            self.device_state.warm_up(say)
        for start in self.pool_sizes:
            for end in self.pool_sizes:
                if start != end:
                    self.device_state.resize(0)
                    self.device_state.resize(start)
                    self.device_state.resize(end)
        self.device_state.resize(self.pool_sizes[0])

    def resize(self, slots: int, num_pages: int) -> Resized:
        """Go on with so many slots, and with the largest pool of at most so many pages.

        Without a slot, or a pool, nothing is held and nothing is kept: the pool goes as a whole.

        Args:
            slots: at most those that it was made with.

        Raises:
            EngineBusy: a program is in flight.
        """
        if self._launched:
            raise EngineBusy("resize came between begin and finish; call finish first")
        size = next((size for size in self.pool_sizes if size <= num_pages), 0)
        slots = min(slots, self.slots) if size else 0
        size = size if slots else 0
        shrinks = slots < self.slots_left or size < self.num_pages
        released = self._victims(slots, size) if shrinks else ()
        tokens = sum([self._held[i].known for i in released])
        self.release(released)
        before = self.device_state.pool_bytes
        moves = self._scheduler.resize(slots, size)
        if size != self.num_pages:
            if size == 0:
                self._scheduler.prefixes.forget()
            self.device_state.resize(size, moves)
            self.num_pages = size
        return Resized(
            slots=slots,
            num_pages=size,
            pool_bytes=self.device_state.pool_bytes,
            freed_bytes=before - self.device_state.pool_bytes,
            released=released,
            tokens=tokens,
            moved_pages=len(moves),
        )

    def _victims(self, slots: int, num_pages: int) -> tuple[int, ...]:
        running = set(self._scheduler.running)
        occupants = [
            Occupant(
                request_id=rollout.request_id,
                arrival=rollout.arrival,
                tokens=rollout.known,
                pages=tuple(rollout.pages),
                in_slot=rollout in running,
            )
            for rollout in self._held.values()
        ]
        return victims(occupants, slots=slots, num_pages=num_pages)

    def allow(self, allowance: ProgramAllowance | None) -> None:
        """Limit the next program; None: whatever fits."""
        self._scheduler.allowance = allowance

    def begin(self) -> int:
        """Launch one program as `Engine.begin` does; one that only prefills yields nothing."""
        if self._launched:
            raise EngineBusy("begin came twice; call finish in between")
        plan = self._scheduler.plan()
        if plan is None:
            return 0
        self.last = plan
        output = self.device_state.launch(plan)
        self._launched.append((plan, output, plan.prefilled_again))
        return max(1, plan.most_tokens)


def pool_sizes(num_pages: int, *, least: int, count: int) -> tuple[int, ...]:
    """Pool sizes in pages, each half of the one before, rounded up, none below `least`."""
    sizes = [num_pages]
    while len(sizes) < count and (half := -(-sizes[-1] // 2)) >= least and half < sizes[-1]:
        sizes.append(half)
    return tuple(sizes)
