"""RLBoost as its public code behaves, where that is not what its paper says: a baseline.

Source: the manager of the public artifact (`balance.rs` and its dispatcher), as dissected by
reading. The world around it, the ledger, the servers and their streams are those of every other
system here; other are only these decisions:

- a group of responses is dispatched and moved as one, to instances that a poll once a second
  saw without a queue, in turn, at most four groups between two polls in the whole fleet; a group
  that finds no such instance has used up one of the four all the same;
- on any break the members of a group go on from the shortest one's length: what others have
  beyond it is thrown away, also at the end of every window (finished members are kept, which is
  kinder than the code, that decodes past their end);
- the window is always slept out in full, whoever has finished or come, and answers are read a
  second after it;
- window lengths are whole seconds, by a controller of its own with a table of the fleet's size;
- nothing is balanced, and no cap is derived.
"""

from collections.abc import Iterable, Mapping

from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.reducer.recovery import Recovery
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import Rollout, Step
from rlboost_jax.messages import StepTrained, WindowClosed, WindowState

QUOTA = 4  # groups between two polls
POLL_SECONDS = 1.0
ANSWER_SECONDS = 1.0  # from the end of the window until answers are read
FLOOR_SECONDS = 5


class Controller:
    """`balance.rs`: seconds are whole, the memory is a moving average by number of instances."""

    def __init__(self, seconds: int, table: Mapping[int, int]) -> None:
        self.seconds = self._peak = seconds  # peak: the window at which throughput last grew
        self._known = dict(table)
        self._count, self._throughput = 0, 0

    def update(
        self, *, count: int, generation: float, step: float, bubble: float, throughput: int
    ) -> int:
        """The next window.

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


class GroupWork(Dispatch):
    """Groups as they are dispatched, moved and cut."""

    poll_at = 0.0
    answers_at: float | None = None  # of a window that is over
    _quota = 0
    _turn_of = 0  # of the next candidate
    _seen: frozenset[str] = frozenset()  # by the last poll, without a queue

    def settle(self, now: float) -> None:
        step = self._ledger.active
        if step is None:
            return
        reserved = self.reserved(step) if self.seeding.open else []
        eligible = [*self.remote(step), *reserved]
        if now >= self.poll_at:
            self.poll_at = now + POLL_SECONDS
            self._quota = QUOTA
            self._seen = frozenset(i.name for i in eligible if len(i.held) <= i.slots)
        if self.seeding.open and now >= self.seeding.until:
            self.seeding.close(now)
            self.answers_at = now + ANSWER_SECONDS
            for instance in self._roster.index.reserved.values():
                self.release(instance, instance.held.values())
        elif self.answers_at is not None and now >= self.answers_at:
            self.answers_at = None
            seconds = self.seeding.total(now)
            reason = "the window is over"
            self._outbox.of_step(WindowClosed(step=step.begin.step, seconds=seconds, reason=reason))
        if self._quota and step.num_waiting:
            self._dispatch(step, [i for i in eligible if i.name in self._seen], now)

    def _dispatch(self, step: Step, candidates: list[Instance], now: float) -> None:
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
            self._generate(step, candidates[self._turn_of % len(candidates)], members, now)
            self._turn_of += 1

    def put_back(self, instance: Instance, request_ids: Iterable[int]) -> int:
        back = [instance.let_go(request_id) for request_id in request_ids]
        wait = [r for r in back if r is not None and r.result is None and not r.step.cancelled]
        cuts: dict[Step, dict[Rollout, int]] = {}
        for rollout in wait:
            size = rollout.step.begin.group_size
            first = rollout.group * size
            members = [rollout.step.rollout_of(first + place) for place in range(size)]
            shortest = min(member.num_tokens for member in members if member is not None)
            if shortest < rollout.num_tokens:
                cuts.setdefault(rollout.step, {})[rollout] = shortest
        for step, own in cuts.items():
            self._ledger.redo(step, own)
        for rollout in wait:
            rollout.step.wait(rollout)
        return len(wait)


class ControlledTrainer(Trainer):
    controller: Controller
    accelerators = 1.0
    _tokens = 0

    def _trained(self, message: StepTrained, now: float) -> None:
        step = self._ledger.active
        if step is not None:
            self._tokens = sum(r.num_tokens for r in step.delivered(measuring=False))
        super()._trained(message, now)

    def _observe(
        self, message: StepTrained, rollout: float, remote_wait: float, instances: float
    ) -> None:
        seconds = rollout + remote_wait
        window = self.controller.update(
            count=self._roster.members,
            generation=rollout,
            step=seconds,
            bubble=message.train_wait_seconds,
            throughput=int(self._tokens / max(seconds, 1e-9) / self.accelerators),
        )
        self.window = WindowState(seconds=window, memory={}, instance_cap=self.window.instance_cap)


class PublicCode(Manager):
    """
    Args:
        table: window by number of instances, in seconds, to begin with.
        accelerators: reserved ones, which throughput is told by.
    """

    def __init__(
        self, settings: Settings, now: float, *, table: Mapping[int, int], accelerators: float
    ) -> None:
        super().__init__(settings, now)
        parts = settings, self.ledger, self.roster
        self.dispatch = self._groups = GroupWork(*parts, self._outbox)
        self.servers = Servers(*parts, self.fleet, self.dispatch, self._outbox)
        trainer = ControlledTrainer(*parts, self.dispatch, self.servers, self._outbox, now)
        initial = round(settings.manager.window_initial_seconds)
        trainer.controller = Controller(initial, table)
        trainer.accelerators = accelerators
        self.trainer = trainer
        self.recovery = Recovery(
            self.ledger, self.roster, self.fleet, self.servers, self.trainer, self._outbox
        )

    def _window_at(self) -> float:
        """When the window ends, answers are read, or a poll may let more groups go."""
        step, work = self.ledger.active, self._groups
        if step is None:
            return float("inf")
        moments = [work.seeding.until] if work.seeding.open else []
        moments += [work.poll_at] if step.num_waiting else []
        moments += [work.answers_at] if work.answers_at is not None else []
        return min(moments, default=float("inf"))
