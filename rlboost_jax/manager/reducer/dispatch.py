"""Rollouts meet instances: placement, moves, and the seeding window's opening and closing.

`settle` runs after every event that may have made room, work or a ready instance. There
is no tick: a waiting rollout goes as soon as an eligible instance has room.
"""

from collections.abc import Collection, Iterable, Sequence

from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.policies.forecast import RESOLUTION
from rlboost_jax.manager.policies.placement import (
    Load,
    Pace,
    assign,
    pending_moves,
    room,
    running_moves,
    straggler,
)
from rlboost_jax.manager.policies.throughput import ThroughputProfile
from rlboost_jax.manager.policies.window import Seeding
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import Rollout, Step
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.manager.state.usage import Usage
from rlboost_jax.messages import (
    Generate,
    GenerateRequest,
    Release,
    WindowClosed,
    Withdrawn,
    pack_ids,
)

RANKINGS = 64  # of the queue in a step, at most
GENERATE_BYTES = 8 * 2**20  # of tokens in one frame; more is split


class Dispatch:
    def __init__(self, settings: Settings, ledger: Ledger, roster: Roster, outbox: Outbox) -> None:
        self._settings = settings.manager
        self._ledger = ledger
        self._roster = roster
        self._outbox = outbox
        self.seeding = Seeding()
        self.profile = ThroughputProfile()
        self.model = StepModel(settings) if settings.models else None
        self._ranked: tuple[Step, int] | None = None  # and how many had finished then
        self._planned_for = -1  # members of the fleet at the last plan
        self.planned_end: float | None = None  # of the window, if the model has ended it

    def settle(self, now: float) -> None:
        """Do all that can be done for the active step at this moment."""
        step = self._ledger.active
        if step is None:
            return
        reserved = self.reserved(step)
        remote = self.remote(step)
        self._turn(step, bool(remote), now)
        if step.finished:
            return
        # Reserved engines come last: among equals, work goes where it may stay.
        seeding = reserved if self.seeding.open else []
        if step.num_waiting:
            self._rank(step)
            self._place(step, [*remote, *seeding], now)
        if self._settings.balance and not step.num_waiting:
            self._balance(step, remote, seeding)
        idle = reserved and not any(i.held for i in reserved)
        if self.seeding.open and remote and idle and not step.num_waiting:
            self._close(step, "reserved engines have nothing left", now)

    def undisturbed(self, instance: Instance) -> bool:
        """Whether its pace is an engine's own: the learner may need a reserved one's chips."""
        return not instance.reserved or (self.seeding.open and not self.seeding.reopened)

    def reserved(self, step: Step) -> list[Instance]:
        """The trainer's engines that can work on a step."""
        return [i for i in self._roster.index.reserved.values() if i.ready_for(step)]

    def remote(self, step: Step) -> list[Instance]:
        """Preemptible instances that can work on a step, in the order in which they joined.

        The roster's own list: to be read at once, and by nobody changed.
        """
        return self._roster.pool(step).instances if self._roster.trusting else []

    @property
    def engines(self) -> tuple[list[Instance], list[Instance]]:
        """Reserved and preemptible ones that a step can count on, ready for it or not yet."""
        reserved = self._roster.index.reserved.values() if self._settings.seeding else ()
        return list(reserved), [i for i in self._roster if i.member]

    def release(self, instance: Instance, rollouts: Iterable[Rollout]) -> None:
        """Ask rollouts back; they wait again once the server has answered."""
        asked = [r for r in rollouts if not r.releasing]
        if asked:
            for rollout in asked:
                rollout.asked_at = self._roster.now
            instance.asking(len(asked))
            ids = pack_ids([r.request_id for r in asked])
            self._outbox.send(instance.stream, Release(request_ids=ids))
            self._roster.watch(instance)

    def release_cancelled(self) -> None:
        """Stop the work of steps that were given up, wherever it is."""
        for instance in self._roster:
            self.release(instance, [r for r in instance.held.values() if r.step.cancelled])

    def record_usage(self, instance: Instance) -> None:
        """What it did since this was done last."""
        usage, instance.usage = instance.usage, Usage()
        if usage.tokens:
            reserved = instance.reserved
            self._outbox.record("worked", instance.name, reserved=reserved, **usage.values())

    def put_back(self, instance: Instance, request_ids: Iterable[int]) -> int:
        """Rollouts that an instance no longer holds wait again, with the tokens they have.

        Without migration they begin anew: what most systems do, and worth comparing with.
        """
        back = [instance.let_go(request_id) for request_id in request_ids]
        wait = [r for r in back if r is not None and r.result is None and not r.step.cancelled]
        if not self._settings.migration:
            for step in {r.step for r in wait}:
                begun = (r for r in wait if r.step is step and r.num_tokens)
                self._ledger.redo(step, dict.fromkeys(begun, 0))
        for rollout in wait:
            rollout.step.wait(rollout)
        return len(wait)

    def redo(self, step: Step, doubted: Iterable[Rollout], blamed: Collection[str]) -> None:
        """Do again what blamed instances sampled: of the doubted responses, of all that are not
        finished, and of those that measure the policy. Other finished ones are the learner's to
        check."""
        suspects = [r for r in step.rollouts if r.result is None or r.measures]
        cuts = {r: min(r.first_of(name) for name in blamed) for r in (*doubted, *suspects)}
        cuts = {r: length for r, length in cuts.items() if length < r.num_tokens}
        withdrawn = [r.sample for r in cuts if r.result is not None and r.measures]
        if withdrawn:
            self._outbox.of_step(Withdrawn(step=step.begin.step, samples=pack_ids(withdrawn)))
        taken: list[Rollout] = []
        for instance in self._roster:
            held = [r for r in instance.held.values() if r in cuts]
            self.release(instance, held)
            for rollout in held:  # at once: what comes of it now goes on from wrong tokens
                instance.let_go(rollout.request_id)
            taken += held
        self._ledger.redo(step, cuts)
        for rollout in taken:
            step.wait(rollout)

    def stop(self, now: float) -> None:
        """The step is over."""
        if self.seeding.open:
            self.seeding.close(now)

    def _turn(self, step: Step, remote: bool, now: float) -> None:
        seeding = self.seeding
        if seeding.open:
            if step.finished:
                self._close(step, "all responses are finished", now)
            elif remote and self._over(step, now):
                self._close(step, "the window is over", now)
        elif not remote and not step.finished:
            seeding.reopen(now)

    def _rank(self, step: Step) -> None:
        """Put the queue in order again once enough has ended to tell more of the rest."""
        if self.model is None or not self.model.by_length:
            return
        last, finished = self._ranked or (None, 0)
        news = (step.num_finished - finished) * RANKINGS >= len(step.rollouts)
        if last is not step or news:
            self._ranked = step, step.num_finished
            slots = sum(i.slots for side in self.engines for i in side)
            step.rank(self.model.ranks(step, slots))

    def _over(self, step: Step, now: float) -> bool:
        """Whether the window has lasted long enough; finds when to ask again.

        By the model, the rest of the step is foreseen again half-way to the end that was
        foreseen last, and when the fleet has changed.
        """
        seeding, model = self.seeding, self.model
        if model is None or self._settings.window == "paper" or not self._settings.seeding:
            return now >= seeding.until
        members = self._roster.members
        if seeding.reopened or (now < seeding.until and members == self._planned_for):
            return seeding.reopened
        self._planned_for = members
        fleet = [i for i in self._roster if i.member]
        found = model.window(step, self.reserved(step), fleet, now)
        if found is None:
            seeding.until = max(now, seeding.limit)
            return now >= seeding.limit
        near = RESOLUTION * (now - step.begun_at + found.end)
        if found.window <= near:
            self.planned_end = now
            return True
        seeding.until = now + (found.window if found.window < 4 * near else found.window / 2)
        return False

    def _close(self, step: Step, reason: str, now: float) -> None:
        self.seeding.close(now)
        seconds = self.seeding.total(now)
        self._outbox.record("window_closed", seconds=seconds, reason=reason)
        self._outbox.of_step(WindowClosed(step=step.begin.step, seconds=seconds, reason=reason))
        for instance in self._roster.index.reserved.values():
            self.release(instance, instance.held.values())

    def _place(self, step: Step, eligible: list[Instance], now: float) -> None:
        paces = self._paces(eligible)
        loads = [
            Load(slots=i.slots, held=len(i.held), groups=i.groups, pace=pace)
            for i, pace in zip(eligible, paces, strict=True)
        ]
        limit = self._settings.max_pending
        rollouts = step.take(min(step.num_waiting, room(loads, limit)))
        chosen = assign(
            [r.group for r in rollouts],
            loads,
            max_pending=limit,
            group_size=step.begin.group_size,
        )
        batches: dict[int, list[Rollout]] = {}
        for rollout, index in zip(rollouts, chosen, strict=True):
            batches.setdefault(index, []).append(rollout)
        for index in sorted(batches):
            self._generate(step, eligible[index], batches[index], now)

    def _paces(self, instances: Sequence[Instance]) -> list[Pace | None]:
        model = self.model
        if model is None or not self._by_speed:
            return [None] * len(instances)
        return [model.pace(instance) for instance in instances]

    def _generate(
        self, step: Step, instance: Instance, rollouts: list[Rollout], now: float
    ) -> None:
        moved: dict[str, list[int]] = {}
        for rollout in rollouts:
            if rollout.previous and rollout.previous != instance.name:
                moved.setdefault(rollout.previous, []).append(rollout.num_tokens)
            if rollout.num_tokens:
                step.books.prefilled_again += rollout.length
            if rollout.num_tokens or rollout.group not in instance.groups:
                instance.usage.prefilled += rollout.length
            rollout.request_id = self._ledger.next_request()
            instance.hold(rollout, now)
        self._roster.watch(instance)
        for previous, tokens in moved.items():
            step.books.migrated += len(tokens)
            self._outbox.record(
                "migrated",
                instance.name,
                **{"from": previous, "to": instance.name},
                count=len(tokens),
                tokens=sum(tokens),
            )
        if not instance.worked:
            instance.worked = True
            self._outbox.record("working", instance.name, count=len(rollouts))
        requests: list[GenerateRequest] = []
        size = 0
        for rollout in rollouts:
            requests.append(rollout.request())
            size += 4 * rollout.length
            if size >= GENERATE_BYTES or rollout is rollouts[-1]:
                digest = step.begin.params_digest
                frame = Generate(params_digest=digest, requests=tuple(requests))
                self._outbox.send(instance.stream, frame)
                requests, size = [], 0

    @property
    def _by_speed(self) -> bool:
        """Whether rollouts go by pace: among equals fewest pending is the same, and cheaper."""
        model = self.model
        return model is not None and self._settings.routing == "speed" and model.mixed

    def _relieve(self, eligible: Sequence[Instance]) -> None:
        """Of a mixed fleet: let the one that ends last give a rollout to a much faster one."""
        loads = [
            Load(slots=i.slots, held=len(i.held), pace=pace)
            for i, pace in zip(eligible, self._paces(eligible), strict=True)
        ]
        if (slow := straggler(loads)) is not None:
            self.release(eligible[slow], _shortest(eligible[slow], 1))

    def _balance(self, step: Step, remote: Sequence[Instance], seeding: Sequence[Instance]) -> None:
        """Continuous load balancing: pending rollouts first, then running ones.

        Whoever holds no more than its slots has nothing pending, and whoever holds one rollout
        at most has none to spare: only the others are looked at.
        """
        index = self._roster.index
        pool = self._roster.pool(step) if remote else None

        def works(instance: Instance) -> bool:
            if instance.reserved:
                return instance in seeding
            return pool is not None and index.works_with(instance, pool)

        if any(works(instance) for instance in index.overfull.values()):
            eligible = [*remote, *seeding]
            loads = [Load(slots=i.slots, held=len(i.held) - i.num_releasing) for i in eligible]
            moves = pending_moves(loads, index.asked_back)
            for instance, count in zip(eligible, moves, strict=True):
                if count:
                    self.release(instance, newest_pending(instance, count))
        elif self._by_speed and remote and not index.asked_back:
            self._relieve([*remote, *seeding])
        elif pool is not None and pool.idle and not index.asked_back:
            crowded = [instance for instance in index.crowded.values() if works(instance)]
            if not crowded:
                return
            busiest = min(crowded, key=lambda i: (-min(len(i.held), i.slots), i.reserved, i.order))
            plateau = self.profile.plateau(busiest.kind, context=context(busiest))
            load = Load(slots=busiest.slots, held=len(busiest.held), plateau=plateau)
            if count := running_moves(load, pool.idle):
                self.release(busiest, _shortest(busiest, count))


def newest_pending(instance: Instance, count: int) -> list[Rollout]:
    """The last placed that have shown no token here: a server begins with the oldest."""
    newest = [r for r in reversed(instance.held.values()) if not (r.releasing or r.yielded)]
    return sorted(newest[: max(0, count)], key=lambda r: r.request_id)


def context(instance: Instance) -> float:
    """Mean length of the rollouts held, in tokens."""
    held = instance.held.values()
    return sum(r.length for r in held) / len(held) if held else 0.0


def _shortest(instance: Instance, count: int) -> list[Rollout]:
    """Those that cost the least prefill elsewhere."""
    held = [r for r in instance.held.values() if not r.releasing]
    return sorted(held, key=lambda r: (r.length, r.sample))[:count]
