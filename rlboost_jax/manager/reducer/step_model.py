"""What the manager has learnt of its steps, and what it foresees with it.

Lengths, speeds and the learner's pace are measured as a run goes on; a plan is made of them and
of where every rollout is now. Nothing is foreseen before a whole step has been seen.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from rlboost_jax.manager.policies.drag import Drag
from rlboost_jax.manager.policies.forecast import (
    WAITS,
    Engines,
    Forecast,
    Job,
    Learner,
    Plan,
    best_window,
    forecast,
    micro_batches,
    without_waits,
)
from rlboost_jax.manager.policies.lengths import Floats, Indices, Lengths, Responses, responses
from rlboost_jax.manager.policies.order import first_wave, foreseen_order, later_waves
from rlboost_jax.manager.policies.placement import Pace
from rlboost_jax.manager.policies.speeds import BusySpan, Rates, Speeds
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import Rollout, Step

NEWEST = 0.5  # weight of the last step in the learner's pace
NO_RATES = Rates(step=1.0, row=0.0, context=0.0, prefill=0.0)  # of no engine at all
LEAST_GAIN = 0.01  # of a step, for which its order is changed
PACE_STEP = math.log(1.25)  # engines whose paces differ by less are planned as equal


class StepModel:
    def __init__(self, settings: Settings) -> None:
        self._groups = settings.micro_batch_prompts
        self._fixed = settings.deterministic
        self._longest_first = settings.manager.longest_first
        self.lengths = Lengths()
        self.speeds = Speeds()
        self.seconds_per_token = 0.0  # of the learner; 0: not known
        self.overhead = 0.0  # seconds of a step besides window, waits and training
        self.drag = Drag()
        self._step: Step | None = None  # that the next is about
        self._complete: dict[int, float] = {}  # prompt → when its last response ended, so far
        self.by_length = self._longest_first  # whether the longest are to be begun first
        self._planned_drag = 1.0  # of the last plan of a window
        self._mean_tokens = 0.0  # of a response with its prompt
        self._most = math.inf  # tokens of a response
        self._prompts: list[tuple[int, int]] = []  # (prompt tokens, responses) of the last step
        self._asked: tuple[Indices, Floats, list[Job], list[float]] | None = None  # from these

    @property
    def ready(self) -> bool:
        return self.lengths.known and self.seconds_per_token > 0

    def told(
        self,
        instance: Instance,
        before: Iterable[tuple[Rollout, int, bool]],
        now: float,
        *,
        counts: bool,
    ) -> None:
        """A token batch was taken in.

        Args:
            before: rollouts of it, with their length and whether the placement had given tokens.
            counts: whether the engine had its chips to itself.
        """
        span = instance.span
        if span is None:
            return
        going_on = context = 0
        for rollout, length, yielded in before:
            count = rollout.length - length
            if rollout.result is None:
                going_on, context = going_on + 1, context + rollout.length
            if count > 0:
                span.add(rollout.request_id, length, count, first=not yielded)
        if going_on >= instance.running:  # everything that it has sampled is known
            if counts:
                self.speeds.add(_kind(instance), instance.name, span, now)
            if instance.waiting and instance.running < instance.slots:
                self.speeds.crowded(_kind(instance), context)
            instance.span = BusySpan(now) if instance.running else None

    def learn(
        self, step: Step, *, train_seconds: float, other_seconds: float, present: Collection[str]
    ) -> None:
        """Take in a step that is over.

        Args:
            other_seconds: of the step besides the window, waits and training; less than none
                where the trainer tells of more than this manager has seen, which began later.
        """
        groups = _groups(r for r in step.rollouts if not r.measures)
        self.lengths.learn(
            responses([[(r.num_tokens, r.result is not None) for r in g] for g in groups])
        )
        self.speeds.end_step(present)
        tokens = sum(r.length for group in groups for r in group)
        if tokens and train_seconds > 0:
            known = self.seconds_per_token > 0
            weight = NEWEST if known else 1.0
            self.seconds_per_token += weight * (train_seconds / tokens - self.seconds_per_token)
            self.overhead += weight * (max(0.0, other_seconds) - self.overhead)
        self._mean_tokens = tokens / max(1, sum(len(group) for group in groups))
        self._most = float(step.begin.sampling.max_tokens)
        self._prompts = [(g[0].length - g[0].num_tokens, len(g)) for g in groups]
        self._asked = None

    def ended(self, rollout: Rollout, now: float) -> None:
        """A response is finished."""
        if rollout.step is not self._step:
            self._step, self._complete = rollout.step, {}
        self._complete[rollout.group] = now

    def compare(self, step: Step, closed: float) -> None:
        """Learn from a window that was ended by plan, so that the learner should just not wait:
        when should it have ended, with the groups complete when they were?

        Args:
            closed: when it ended.
        """
        if step is not self._step or not self.seconds_per_token:
            return
        groups = _groups(r for r in step.rollouts if r.result is not None and not r.measures)
        tokens = [float(sum(r.length for r in group)) for group in groups]
        complete = [(self._complete.get(g[0].group, closed), n) for n, g in enumerate(groups)]
        should, critical = without_waits(micro_batches(self._learner, tokens, complete))
        self.drag.learn(self._planned_drag, closed=closed, should=should, critical=critical)

    @property
    def _learner(self) -> Learner:
        return Learner(
            seconds_per_token=self.seconds_per_token,
            micro_batch_groups=self._groups,
            fixed=self._fixed,
        )

    def window(
        self, step: Step, reserved: Sequence[Instance], remote: Sequence[Instance], now: float
    ) -> Forecast | None:
        """The best window for what is left of a step, from now on; None: it cannot be told."""
        engines, places = self._engines([reserved, remote])
        if not self.ready or not engines:
            return None
        unheard = self._unheard([*reserved, *remote], now)
        groups = _groups(r for r in step.rollouts if not r.measures)
        if not groups:  # all of the batch measures the policy
            return None
        rollouts = [rollout for group in groups for rollout in group]
        prompts = [r.length - r.num_tokens for r in rollouts]
        so_far = [
            r.num_tokens + (unheard.get(r.request_id, 0.0) if r.holder else 0.0) for r in rollouts
        ]
        ended = [r.result is not None for r in rollouts]
        state = Responses(
            group=np.repeat(np.arange(len(groups)), [len(g) for g in groups]),
            tokens=np.array(so_far, float),
            ended=np.array(ended, bool),
        )
        most = step.begin.sampling.max_tokens
        lengths = np.minimum(self.lengths.scenario(state), most)
        totals = np.bincount(state.group, lengths + prompts)
        order = sorted(
            (n for n, done in enumerate(ended) if not done),
            key=lambda n: (rollouts[n].num_tokens == 0, step.rank_of(rollouts[n]), n),
        )
        place = [
            places.get(r.holder, WAITS) if r.request_id in unheard else WAITS for r in rollouts
        ]
        jobs = [
            Job(
                group=int(state.group[n]),
                context=prompts[n] + so_far[n],
                remaining=max(1.0, float(lengths[n]) - so_far[n]),
                place=place[n],
                begun=so_far[n] > 0,
            )
            for n in order
        ]
        remote_engines = sum(group.count for group in engines[1:])
        self._planned_drag = self.drag.hedged(engines[0].count, remote_engines)
        return best_window(self._plan(engines, jobs, totals.tolist(), self._planned_drag))

    def tail(
        self, step: Step, instances: Sequence[Instance], closed: float, now: float
    ) -> Forecast | None:
        """What is left of a step after the window, if only these instances go on; None: it
        cannot be told.

        Args:
            closed: when the learner began.
        """
        engines, places = self._engines([(), instances])
        if not self.ready or (instances and not engines):
            return None
        unheard = self._unheard(instances, now)
        groups = _groups(r for r in step.rollouts if not r.measures)
        if not groups:
            return None
        rollouts = [rollout for group in groups for rollout in group]
        state = responses([[(r.num_tokens, r.result is not None) for r in g] for g in groups])
        lengths = np.minimum(self.lengths.scenario(state), self._most)
        totals = np.bincount(state.group, lengths + [r.length - r.num_tokens for r in rollouts])
        jobs = []
        for n, rollout in enumerate(rollouts):
            if rollout.result is None:
                so_far = rollout.num_tokens + unheard.get(rollout.request_id, 0.0)
                jobs.append(
                    Job(
                        group=int(state.group[n]),
                        context=rollout.length - rollout.num_tokens + so_far,
                        remaining=max(1.0, float(lengths[n]) - so_far),
                        place=places.get(rollout.holder, WAITS),
                        begun=rollout.num_tokens > 0,
                    )
                )
        ended = {} if step is not self._step else self._complete
        slower = self.drag.value * (1.0 + self.drag.deviation)
        engines = [replace(e, rates=e.rates.times(slower)) for e in engines]
        plan = self._plan(engines, jobs, totals.tolist(), self.drag.value)
        complete = {n: ended.get(g[0].group, closed) - now for n, g in enumerate(groups)}
        return forecast(replace(plan, handed_over=closed - now, complete=complete), 0.0)

    @property
    def mixed(self) -> bool:
        """Whether some instances are known to be much slower than others."""
        return self.speeds.mixed

    def pace(self, instance: Instance) -> Pace | None:
        """For rollouts like those of the last step, half-way; None: it is not known."""
        rates = self.rates(instance)
        if rates is None:
            return None
        rates = rates.times(self.speeds.factor(instance.name))
        row = rates.row + rates.context * self._mean_tokens / 2
        return Pace(base=rates.step, row=row, tokens=self._mean_tokens)

    def choose_order(self, reserved: Sequence[Instance], remote: Sequence[Instance]) -> None:
        """Whether the next step's longest rollouts are to be begun first: if it is foreseen to
        end sooner with these engines; as before if there are none."""
        if self._longest_first and self.ready:
            engines, _ = self._engines([reserved, remote])
            if any(e.count for e in engines):
                self.by_length = self._whole(engines)[2]

    def ranks(self, step: Step, slots: int) -> dict[int, float]:
        """Of a step's rollouts, longest first after a first wave, by sample: the lower the sooner.

        Args:
            slots: of all engines that work on it.
        """
        groups = _groups(r for r in step.rollouts if not r.measures)
        if not groups:
            return {}
        rollouts = [rollout for group in groups for rollout in group]
        if not self.ready or not step.num_finished:
            ranks = first_wave([len(group) for group in groups], slots)
        else:
            state = responses([[(r.num_tokens, r.result is not None) for r in g] for g in groups])
            begun = [[not r.waiting or r.num_tokens > 0 for r in g] for g in groups]
            ranks = later_waves(state.tokens - self.lengths.expected(state), begun)
        return {r.sample: float(rank) for r, rank in zip(rollouts, ranks, strict=True)}

    def whole_step(
        self, reserved: Sequence[Instance], like: Instance, count: int
    ) -> tuple[Forecast, float] | None:
        """A step as the last one was asked for, with so many preemptible instances of one kind,
        and the tokens of its responses; None: it cannot be told."""
        engines, _ = self._engines([reserved, ()])
        rates = self.rates(like)
        if not self.ready or not engines or rates is None or not self._prompts:
            return None
        more = Engines(count=count, slots=like.slots, rates=rates, cache_tokens=self._cache(like))
        return self._whole([engines[0], more])[:2]

    def _whole(self, engines: Sequence[Engines]) -> tuple[Forecast, float, bool]:
        """A step as the last one was asked for, the tokens of its responses, and whether the
        longest are best begun first."""
        group, lengths, jobs, totals = self._asked_for()
        plan = self._plan(engines, jobs, totals, self.drag.value)
        usual, tokens = best_window(plan), float(lengths.sum())
        slots = sum(e.slots * e.count for e in engines)
        if not self._longest_first or slots >= len(jobs):
            return usual, tokens, False
        order = foreseen_order(group, lengths, slots)
        longest = best_window(replace(plan, jobs=[jobs[n] for n in order]))
        if longest.end > usual.end * (1.0 - LEAST_GAIN):
            return usual, tokens, False
        return longest, tokens, True

    def _asked_for(self) -> tuple[Indices, Floats, list[Job], list[float]]:
        """Of a step as the last one was asked for: groups and lengths of its responses, the
        rollouts that they are, and the tokens of each group."""
        if self._asked is None:
            state = responses([[(0, False)] * size for _, size in self._prompts])
            lengths = np.minimum(self.lengths.scenario(state), self._most)
            prompts = np.array([tokens for tokens, _ in self._prompts], float)[state.group]
            jobs = [
                Job(group=int(g), context=float(p), remaining=float(n), place=WAITS)
                for g, p, n in zip(state.group, prompts, lengths, strict=True)
            ]
            totals = np.bincount(state.group, lengths + prompts).tolist()
            self._asked = state.group, lengths, jobs, totals
        return self._asked

    def rates(self, instance: Instance) -> Rates | None:
        """Of an instance's kind; of the kind's reserved or preemptible twin if that is all."""
        kind, reserved = _kind(instance)
        return self.speeds.rates((kind, reserved)) or self.speeds.rates((kind, not reserved))

    def _cache(self, instance: Instance) -> float:
        kind, reserved = _kind(instance)
        return min(self.speeds.cache_tokens((kind, side)) for side in (reserved, not reserved))

    def _plan(
        self, engines: Sequence[Engines], jobs: Sequence[Job], tokens: Sequence[float], drag: float
    ) -> Plan:
        return Plan(engines=engines, jobs=jobs, tokens=tokens, learner=self._learner, drag=drag)

    def _engines(self, sides: Sequence[Sequence[Instance]]) -> tuple[list[Engines], dict[str, int]]:
        """Engines by kind and pace, the reserved ones first; where each instance is there.

        Empty if a kind has no rates.
        """
        engines = [Engines(count=0, slots=1, rates=NO_RATES)]
        places: dict[str, int] = {}
        for reserved, side in zip((True, False), sides, strict=True):
            alike: dict[object, list[Instance]] = {}
            for instance in side:
                pace = round(math.log(self.speeds.factor(instance.name)) / PACE_STEP)
                alike.setdefault((instance.kind, 0 if reserved else pace), []).append(instance)
            for members in alike.values():
                rates = self.rates(members[0])
                if rates is None:
                    return [], {}
                factors = [self.speeds.factor(i.name) for i in members]
                group = Engines(
                    count=len(members),
                    slots=members[0].slots,
                    rates=rates.times(sum(factors) / len(factors)),
                    cache_tokens=self._cache(members[0]),
                )
                if reserved:
                    engines[0] = group
                else:
                    engines.append(group)
                places.update((i.name, 0 if reserved else len(engines) - 1) for i in members)
        return engines, places

    def _unheard(self, instances: Iterable[Instance], now: float) -> dict[int, float]:
        """By request: tokens that its holder must have sampled since it last told of them."""
        unheard: dict[int, float] = {}
        for instance in instances:
            rates, span = self.rates(instance), instance.span
            if rates is None or span is None:
                continue
            running = list(instance.held.items())[: instance.slots]
            context = sum(rollout.length for _, rollout in running)
            seconds = rates.step_seconds(len(running), context) * self.speeds.factor(instance.name)
            steps = (now - span.since) / seconds if seconds > 0 else 0.0
            for request, rollout in running:
                room = rollout.sampling.max_tokens - rollout.num_tokens - 1
                unheard[request] = max(0.0, min(steps - span.steps.get(request, 0), room))
        return unheard


def _kind(instance: Instance) -> tuple[Hashable, bool]:
    return instance.kind, instance.reserved


def _groups(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return [groups[prompt] for prompt in sorted(groups)]
