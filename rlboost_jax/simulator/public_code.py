"""RLBoost as its public code behaves, where that is not what its paper says: a baseline.

Source: the manager of the public artifact (`balance.rs` and its dispatcher), as dissected by
reading. The world around it, the ledger, the servers and their streams are those of every other
system here; other are only these decisions:

- a group of responses is dispatched and moved as one, to instances that a poll once a second
  saw without a queue, in turn, at most four groups between two polls in the whole fleet; a group
  that finds no instance without a queue still uses up one of the four;
- on any break the members of a group go on from the shortest one's length: what others have
  beyond it is thrown away, also at the end of every window (finished members are kept, which is
  kinder than the code, that decodes past their end);
- the window is always slept out in full, whatever has finished or come, and answers are read a
  second after it;
- window lengths are whole seconds, by a controller of its own with a table of the fleet's size;
- nothing is balanced, and no cap is derived.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rlboost_jax.manager.reducer.components import Choices
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import BatchTrained, WindowState

QUOTA = 4  # groups between two polls
POLL_SECONDS = 1.0
ANSWER_SECONDS = 1.0  # from the end of the window until answers are read
FLOOR_SECONDS = 5


class Controller:
    """Window lengths by `balance.rs`: whole seconds, a moving average per number of instances."""

    def __init__(self, seconds: int, table: Mapping[int, int]) -> None:
        self.seconds = self._peak = seconds  # peak: the window at which throughput last grew
        self._known = dict(table)
        self._count, self._throughput = 0, 0

    def update(
        self, *, count: int, generation: float, step: float, bubble: float, throughput: int
    ) -> int:
        """Return the next window, in seconds.

        Args:
            count: instances that are registered.
            generation: seconds from the batch to its last group.
            step: seconds.
            bubble: seconds that the learner waited for groups.
            throughput: tokens per second and accelerator.
        """
        if count != self._count:
            self._throughput = 0
            before = self._known.get(self._count, self._peak)
            self._known[self._count] = round(0.8 * before + 0.2 * self._peak)
            self._count = count
            if count in self._known:
                self.seconds = self._peak = self._known[count]
                return self.seconds
        else:
            if throughput <= self._throughput:
                before = self._known.get(count, self._peak)
                self._known[count] = round(0.2 * before + 0.8 * self._peak)
            else:
                self._peak = self.seconds
            self._throughput = throughput
        idle = int(max(step - generation, 0.0))
        waited = int(bubble)
        if waited < idle:
            self.seconds = max(self.seconds - (idle - waited) // 3, FLOOR_SECONDS)
        else:
            self.seconds += (waited - idle) // 3
        return self.seconds


class GroupDispatch(RolloutDispatch):
    """Dispatch of whole groups."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._poll_at = 0.0
        self._answers_at: float | None = None  # of a window that is over
        self._quota = 0
        self._turn_of = 0  # of the next candidate
        self._seen: frozenset[str] = frozenset()  # by the last poll, without a queue

    def settle(self, batches: Sequence[BatchRecord], now: float) -> None:
        step = batches[0]  # it knows of no other
        window = self._seeding
        reserved = self.reserved(step) if window.open else []
        eligible = [*self.remote(step), *reserved]
        if now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS
            self._quota = QUOTA
            self._seen = frozenset(i.name for i in eligible if len(i.held) <= i.slots)
        if window.open and now >= window.clock.until:
            window.hand_over(now)
            self._answers_at = now + ANSWER_SECONDS
        elif self._answers_at is not None and now >= self._answers_at:
            self._answers_at = None
            window.announce_end(step, "the window is over", now)
        if self._quota and step.num_waiting:
            self._dispatch(step, [i for i in eligible if i.name in self._seen], now)

    def wake_at(self, step: BatchRecord) -> float:
        """Time of the window's end, of reading answers, or of a poll that may release groups."""
        clock = self._seeding.clock
        moments = [clock.until] if clock.open else []
        moments += [self._poll_at] if step.num_waiting else []
        moments += [self._answers_at] if self._answers_at is not None else []
        return min(moments, default=float("inf"))

    def _dispatch(self, step: BatchRecord, candidates: list[Instance], now: float) -> None:
        groups: dict[int, list[Rollout]] = {}
        for rollout in step.take(step.num_waiting):
            groups.setdefault(rollout.group, []).append(rollout)
        for members in groups.values():
            taken = self._quota > 0
            self._quota -= taken
            if not (taken and candidates):
                for rollout in members:
                    step.wait(rollout)
                continue
            candidate = candidates[self._turn_of % len(candidates)]
            self._placements.generate(step, candidate, members, now)
            self._turn_of += 1


class GroupPlacements(Placements):
    """Placements of whole groups, cut to their shortest member."""

    def put_back(self, instance: Instance, request_ids: Iterable[int]) -> int:
        back = [instance.let_go(request_id) for request_id in request_ids]
        wait = [r for r in back if r is not None and not r.finished and not r.batch.cancelled]
        cuts: dict[BatchRecord, dict[Rollout, int]] = {}
        for rollout in wait:
            size = rollout.batch.begin.group_size
            first = rollout.group * size
            members = [rollout.batch.rollout_of(first + place) for place in range(size)]
            shortest = min(member.transcript.num_tokens for member in members if member is not None)
            if shortest < rollout.transcript.num_tokens:
                cuts.setdefault(rollout.batch, {})[rollout] = shortest
        for step, own in cuts.items():
            self._ledger.redo(step, own)
        for rollout in wait:
            rollout.batch.wait(rollout)
        return len(wait)


class PublicControl(WindowControl):
    """Window control by the public code's controller.

    Args:
        controller: computes the length of the next window.
        accelerators: number of reserved ones, by which throughput is divided.
    """

    def __init__(self, *parts: Any, controller: Controller, accelerators: float) -> None:
        super().__init__(*parts)
        self._controller = controller
        self._accelerators = accelerators

    def observe(
        self,
        step: BatchRecord,
        message: BatchTrained,
        now: float,
        *,
        instances: float,
        seeding: float,
        wanted: int | None,
    ) -> None:
        rollout = step.rollout_seconds
        seconds = rollout + (now - step.begun_at - rollout)
        tokens = sum(r.transcript.num_tokens for r in step.delivered(measuring=False))
        window = self._controller.update(
            count=self._roster.members,
            generation=rollout,
            step=seconds,
            bubble=message.train_wait_seconds,
            throughput=int(tokens / max(seconds, 1e-9) / self._accelerators),
        )
        self.window = WindowState(seconds=window, memory={}, instance_cap=self.window.instance_cap)


class PublicCode(Manager):
    """The public code's manager.

    Args:
        table: window by number of instances, in seconds, to begin with.
        accelerators: number of reserved ones, by which throughput is divided.
    """

    def __init__(
        self, settings: Settings, now: float, *, table: Mapping[int, int], accelerators: float
    ) -> None:
        controller = Controller(round(settings.manager.window_initial_seconds), table)
        choices = Choices(
            placements=GroupPlacements,
            dispatch=GroupDispatch,
            control=partial(PublicControl, controller=controller, accelerators=accelerators),
        )
        super().__init__(settings, now, choices)
