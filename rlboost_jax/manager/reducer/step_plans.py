"""What a step will take, made of what was learnt and of where every rollout is now."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rlboost_jax.manager.policies.forecast import (
    WAITS,
    Engines,
    Forecast,
    Job,
    Plan,
    best_window,
    forecast,
)
from rlboost_jax.manager.policies.lengths import Floats, Responses, responses
from rlboost_jax.manager.policies.order import first_wave, later_waves, predicted_order
from rlboost_jax.manager.policies.speeds import Rates
from rlboost_jax.manager.reducer.step_model import StepModel, groups_of
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout

NO_RATES = Rates(step=1.0, row=0.0, context=0.0, prefill=0.0)  # of no engine at all
LEAST_GAIN = 0.01  # of a step, for which its order is changed
PACE_STEP = math.log(1.25)  # engines whose paces differ by less are planned as equal


class StepPlans:
    """
    Attributes:
        by_length: whether a step's longest rollouts are to be begun first.
        planned_drag: the drag that a window was planned with last.
    """

    def __init__(self, settings: Settings) -> None:
        self.model = StepModel(settings)
        self._longest_first = settings.manager.longest_first
        self.by_length = self._longest_first
        self.planned_drag = 1.0

    def window(
        self,
        step: BatchRecord,
        reserved: Sequence[Instance],
        remote: Sequence[Instance],
        now: float,
        *,
        ahead: bool,
    ) -> Forecast | None:
        """The best window for what is left of a step, from now on; None: it cannot be predicted.

        Args:
            ahead: all engines have later batches to go on with.
        """
        engines, places = self._engines([reserved, remote])
        if not self.model.ready or not any(e.count for e in engines):
            return None
        unheard = self._unheard([*reserved, *remote], now)
        groups = groups_of(r for r in step.rollouts if not r.measures)
        if not groups:  # all of the batch measures the policy
            return None
        rollouts = [rollout for group in groups for rollout in group]
        since = [unheard.get(r.request_id, 0.0) if r.holder else 0.0 for r in rollouts]
        so_far = [r.all_sampled + n for r, n in zip(rollouts, since, strict=True)]
        ended = [r.result is not None for r in rollouts]
        state = Responses(
            group=np.repeat(np.arange(len(groups)), [len(g) for g in groups]),
            tokens=np.array(so_far, float),
            ended=np.array(ended, bool),
        )
        lengths = self._lengths(state, rollouts, step.begin.sampling.max_tokens)
        totals = np.bincount(state.group, lengths + _given(rollouts))
        order = sorted(
            (n for n, done in enumerate(ended) if not done),
            key=lambda n: (not rollouts[n].begun, step.rank_of(rollouts[n]), n),
        )
        place = [
            places.get(r.holder, WAITS) if r.request_id in unheard else WAITS for r in rollouts
        ]
        jobs = [
            Job(
                group=int(state.group[n]),
                context=rollouts[n].length + since[n],
                remaining=max(1.0, float(lengths[n]) - so_far[n]),
                place=place[n],
                begun=so_far[n] > 0,
            )
            for n in order
        ]
        remote_engines = sum(group.count for group in engines[1:])
        self.planned_drag = self.model.drag.hedged(engines[0].count, remote_engines)
        plan = self._plan(engines, jobs, totals.tolist(), self.planned_drag)
        return best_window(replace(plan, ahead=ahead))

    def tail(
        self, step: BatchRecord, instances: Sequence[Instance], closed: float, now: float
    ) -> Forecast | None:
        """What is left of a step after the window, if only these instances go on; None: it
        cannot be predicted.

        Args:
            closed: when the learner began.
        """
        engines, places = self._engines([(), instances])
        if not self.model.ready or (instances and not engines):
            return None
        unheard = self._unheard(instances, now)
        groups = groups_of(r for r in step.rollouts if not r.measures)
        if not groups:
            return None
        rollouts = [rollout for group in groups for rollout in group]
        state = _so_far(groups)
        lengths = self._lengths(state, rollouts, self.model.most_tokens)
        totals = np.bincount(state.group, lengths + _given(rollouts))
        jobs = []
        for n, rollout in enumerate(rollouts):
            if rollout.result is None:
                since = unheard.get(rollout.request_id, 0.0)
                jobs.append(
                    Job(
                        group=int(state.group[n]),
                        context=rollout.length + since,
                        remaining=max(1.0, float(lengths[n]) - rollout.all_sampled - since),
                        place=places.get(rollout.holder, WAITS),
                        begun=rollout.begun,
                    )
                )
        ended = self.model.complete(step)
        slower = self.model.drag.value * (1.0 + self.model.drag.deviation)
        engines = [replace(e, rates=e.rates.times(slower)) for e in engines]
        plan = self._plan(engines, jobs, totals.tolist(), self.model.drag.value)
        complete = {n: ended.get(g[0].group, closed) - now for n, g in enumerate(groups)}
        return forecast(replace(plan, handed_over=closed - now, complete=complete), 0.0)

    def choose_order(self, reserved: Sequence[Instance], remote: Sequence[Instance]) -> None:
        """Whether the next step's longest rollouts are to be begun first: if it is predicted
        to end sooner with these engines; as before if there are none."""
        if self._longest_first and self.model.ready:
            engines, _ = self._engines([reserved, remote])
            if any(e.count for e in engines):
                self.by_length = self._whole(engines)[2]

    def ranks(self, step: BatchRecord, slots: int) -> dict[int, float]:
        """Of a step's rollouts, longest first after a first wave, by sample: the lower the sooner.

        Args:
            slots: of all engines that work on it.
        """
        groups = groups_of(r for r in step.rollouts if not r.measures)
        if not groups:
            return {}
        rollouts = [rollout for group in groups for rollout in group]
        if not self.model.ready or not step.num_finished:
            ranks = first_wave([len(group) for group in groups], slots)
        else:
            state = _so_far(groups)
            begun = [[not r.waiting or r.begun for r in g] for g in groups]
            ranks = later_waves(state.tokens - self.model.lengths.expected(state), begun)
        return {r.sample: float(rank) for r, rank in zip(rollouts, ranks, strict=True)}

    def whole_step(
        self, reserved: Sequence[Instance], like: Instance, count: int
    ) -> tuple[Forecast, float] | None:
        """A step as the last one was asked for, with so many preemptible instances of one kind,
        and the tokens of its responses; None: it cannot be predicted."""
        return self.whole_step_of(reserved, [(like, 1.0, count)])

    def whole_step_of(
        self, reserved: Sequence[Instance], remote: Iterable[tuple[Instance, float, int]]
    ) -> tuple[Forecast, float] | None:
        """The same with instances of several kinds.

        Args:
            remote: of each kind, one that is or was there, how many times as long as its kind
                they take, and their number.
        """
        found = self._fleet_of(reserved, remote)
        return None if found is None else self._whole(found)[:2]

    def predicts(self, reserved: Sequence[Instance], like: Instance) -> bool:
        """Whether `whole_step` can say anything of these."""
        return self._fleet_of(reserved, [(like, 1.0, 0)]) is not None

    def _fleet_of(
        self, reserved: Sequence[Instance], remote: Iterable[tuple[Instance, float, int]]
    ) -> list[Engines] | None:
        """None: of some the pace is not known, or no step is."""
        engines, _ = self._engines([reserved, ()])
        if not self.model.ready or not engines or not self.model.learnt_prompts:
            return None
        found = [engines[0]]
        for like, factor, count in remote:
            if (rates := self.model.rates(like)) is None:
                return None
            found.append(
                Engines(  # who comes shares its device with nobody
                    count=count,
                    slots=like.hello.slots,
                    rates=rates.times(factor),
                    cache_tokens=like.hello.cache_tokens or math.inf,
                )
            )
        return found

    def _whole(self, engines: Sequence[Engines]) -> tuple[Forecast, float, bool]:
        """A step as the last one was asked for, the tokens of its responses, and whether the
        longest are best begun first."""
        group, lengths, jobs, totals = self.model.asked_for()
        plan = self._plan(engines, jobs, totals, self.model.drag.value)
        usual, tokens = best_window(plan), float(lengths.sum())
        slots = sum(e.slots * e.count for e in engines)
        if not self._longest_first or slots >= len(jobs):
            return usual, tokens, False
        order = predicted_order(group, lengths, slots)
        longest = best_window(replace(plan, jobs=[jobs[n] for n in order]))
        if longest.end > usual.end * (1.0 - LEAST_GAIN):
            return usual, tokens, False
        return longest, tokens, True

    def _lengths(self, state: Responses, rollouts: Sequence[Rollout], most: float) -> Floats:
        """Sampled tokens of responses in all, as they are expected.

        Args:
            most: of a sequence.
        """
        limits = [most - r.num_sampled + r.all_sampled for r in rollouts]
        return np.minimum(self.model.lengths.scenario(state), limits)

    def _plan(
        self, engines: Sequence[Engines], jobs: Sequence[Job], tokens: Sequence[float], drag: float
    ) -> Plan:
        return Plan(
            engines=engines, jobs=jobs, tokens=tokens, learner=self.model.learner, drag=drag
        )

    def _engines(self, sides: Sequence[Sequence[Instance]]) -> tuple[list[Engines], dict[str, int]]:
        """Engines by kind and pace, the reserved ones first; where each instance is there.

        Empty if a kind has no rates.
        """
        engines = [Engines(count=0, slots=1, rates=NO_RATES)]
        places: dict[str, int] = {}
        for reserved, side in zip((True, False), sides, strict=True):
            alike: dict[object, list[Instance]] = {}
            for instance in (i for i in side if i.slots):
                pace = round(math.log(self.model.speeds.factor(instance.name)) / PACE_STEP)
                size = instance.slots, instance.cache_tokens  # less where a device is shared
                key = instance.kind, size, 0 if reserved else pace
                alike.setdefault(key, []).append(instance)
            for members in alike.values():
                rates = self.model.rates(members[0])
                if rates is None:
                    return [], {}
                factors = [self.model.speeds.factor(i.name) for i in members]
                group = Engines(
                    count=len(members),
                    slots=members[0].slots,
                    rates=rates.times(sum(factors) / len(factors)),
                    cache_tokens=members[0].cache_tokens,
                )
                if reserved:
                    engines[0] = group
                else:
                    engines.append(group)
                places.update((i.name, 0 if reserved else len(engines) - 1) for i in members)
        return engines, places

    def _unheard(self, instances: Iterable[Instance], now: float) -> dict[int, float]:
        """By request: tokens that its holder must have sampled since its last report."""
        unheard: dict[int, float] = {}
        for instance in instances:
            rates, span = self.model.rates(instance), instance.activity.span
            if rates is None or span is None:
                continue
            running = list(instance.held.items())[: instance.slots]
            context = sum(rollout.length for _, rollout in running)
            seconds = rates.step_seconds(len(running), context) * self.model.speeds.factor(
                instance.name
            )
            steps = (now - span.since) / seconds if seconds > 0 else 0.0
            for request, rollout in running:
                room = rollout.room - 1
                unheard[request] = max(0.0, min(steps - span.steps.get(request, 0), room))
        return unheard


def _so_far(groups: Sequence[Sequence[Rollout]]) -> Responses:
    """What is sampled. One that is parked goes on: when, nobody can say, so as if it waited."""
    return responses([[(r.all_sampled, r.result is not None) for r in g] for g in groups])


def _given(rollouts: Sequence[Rollout]) -> Floats:
    """Tokens of prompts and of what was given since."""
    return np.array([r.all_length - r.all_sampled for r in rollouts], float)
