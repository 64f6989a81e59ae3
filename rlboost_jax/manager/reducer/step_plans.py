"""Plans of a step, from what was learnt and from the place of every rollout now."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlboost_jax.manager.policies.forecast import (
    WAITS,
    Engines,
    Forecast,
    ForecastJob,
    ForecastPlan,
    best_window,
    forecast,
)
from rlboost_jax.manager.policies.length_prediction import Floats, Responses, responses
from rlboost_jax.manager.policies.order import (
    first_wave,
    later_waves,
    leaders_order,
    predicted_order,
)
from rlboost_jax.manager.policies.speeds import Rates
from rlboost_jax.manager.reducer.step_model import StepModel, groups_of
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout

NO_RATES = Rates(step=1.0, row=0.0, context=0.0, prefill=0.0)  # of no engine at all
LEAST_GAIN = 0.01  # of a step, for which its order is changed
PACE_STEP = math.log(1.25)  # engines whose paces differ by less are planned as equal


@dataclass(frozen=True)
class LikeInstances:
    """Instances in a fleet to be predicted.

    Attributes:
        like: one of their kind, which is or was there.
        factor: times the seconds of that kind that they take.
    """

    like: Instance
    count: int
    factor: float = 1.0


class StepPlans:
    """Predictions of a step for given fleets and windows.

    Attributes:
        by_length: whether a step's longest rollouts are to be begun first.
        planned_drag: the drag that a window was planned with last.
    """

    def __init__(self, settings: Settings) -> None:
        self.model = StepModel(settings)
        self._longest_first = settings.manager.longest_first
        self._leaders, self._lag = settings.siblings_follow, settings.lag
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
        """The best window for the rest of a step; None: it cannot be predicted.

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
        where = [r.placement for r in rollouts]
        since = [unheard.get(p.request_id, 0.0) if p.holder else 0.0 for p in where]
        so_far = [r.sequences.num_sampled + n for r, n in zip(rollouts, since, strict=True)]
        ended = [r.finished for r in rollouts]
        state = Responses(
            group=np.repeat(np.arange(len(groups)), [len(g) for g in groups]),
            tokens=np.array(so_far, float),
            ended=np.array(ended, bool),
        )
        lengths = self._lengths(state, rollouts, step.begin.sampling.max_tokens)
        totals = np.bincount(state.group, lengths + _given(rollouts))
        order = sorted(
            (n for n, done in enumerate(ended) if not done),
            key=lambda n: (not rollouts[n].sequences.begun, step.rank_of(rollouts[n]), n),
        )
        place = [places.get(p.holder, WAITS) if p.request_id in unheard else WAITS for p in where]
        jobs = [
            ForecastJob(
                group=int(state.group[n]),
                context=rollouts[n].transcript.length + since[n],
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
        """Predict the rest of a step after the window on these instances; None: not possible.

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
            if not rollout.finished:
                since = unheard.get(rollout.placement.request_id, 0.0)
                known = rollout.sequences.num_sampled + since
                jobs.append(
                    ForecastJob(
                        group=int(state.group[n]),
                        context=rollout.transcript.length + since,
                        remaining=max(1.0, float(lengths[n]) - known),
                        place=places.get(rollout.placement.holder, WAITS),
                        begun=rollout.sequences.begun,
                    )
                )
        ended = self.model.complete(step)
        slower = self.model.drag.value * (1.0 + self.model.drag.deviation)
        engines = [replace(e, rates=e.rates.times(slower)) for e in engines]
        plan = self._plan(engines, jobs, totals.tolist(), self.model.drag.value)
        complete = {n: ended.get(g[0].group, closed) - now for n, g in enumerate(groups)}
        return forecast(replace(plan, handed_over=closed - now, complete=complete), 0.0)

    def choose_order(self, reserved: Sequence[Instance], remote: Sequence[Instance]) -> None:
        """Choose whether the next step's longest rollouts are started first.

        They are if the step is predicted to end sooner so; without engines the choice stays.
        """
        if self._longest_first and self.model.ready:
            engines, _ = self._engines([reserved, remote])
            if any(e.count for e in engines):
                self.by_length = self._whole(engines)[2]

    def ranks(self, step: BatchRecord, slots: int) -> dict[int, float]:
        """Rank of each sample of a step, lowest first: after a first wave, the longest come first.

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
            begun = [[not r.waiting or r.sequences.begun for r in g] for g in groups]
            ranks = later_waves(state.tokens - self.model.lengths.expected(state), begun)
        return {r.sample: float(rank) for r, rank in zip(rollouts, ranks, strict=True)}

    def whole_step(
        self, reserved: Sequence[Instance], remote: Iterable[LikeInstances]
    ) -> tuple[Forecast, float] | None:
        """Predict a step like the last one, and its response tokens; None: not possible.

        With a lag so many more steps are under way at once. They take as long as the learner has
        work, as all engines have, the reserved ones while it does not train, or as their share of
        the time that one takes alone: whichever is longest.
        """
        engines = self._fleet_of(reserved, remote)
        if engines is None:
            return None
        alone, tokens, _ = self._whole(engines)
        if not self._lag:
            return alone, tokens
        own, *others = (each.full_speed(self.model.mean_tokens / 2) for each in engines)
        learner = self.model.seconds_per_token * sum(self.model.asked_for()[-1])
        work = (tokens + own * learner) / (own + sum(others))
        end = max(learner, work, alone.end / (1 + self._lag))
        return Forecast(window=0.0, rollout=end, wait=end - learner, end=end), tokens

    def predicts(self, reserved: Sequence[Instance], like: Instance) -> bool:
        """Whether `whole_step` can predict a step with these instances."""
        return self._fleet_of(reserved, [LikeInstances(like, 0)]) is not None

    def _fleet_of(
        self, reserved: Sequence[Instance], remote: Iterable[LikeInstances]
    ) -> list[Engines] | None:
        """Engines of a fleet; None if it has no reserved ones, or the pace of some is unknown."""
        engines, _ = self._engines([reserved, ()])
        known = self.model.ready and self.model.learnt_prompts
        if not known or not engines or not engines[0].count:
            return None
        found = [engines[0]]
        for each in remote:
            if (rates := self.model.rates(each.like)) is None:
                return None
            found.append(
                Engines(  # who comes shares its device with nobody
                    count=each.count,
                    slots=each.like.hello.slots,
                    rates=rates.times(each.factor),
                    cache_tokens=each.like.hello.cache_tokens or math.inf,
                )
            )
        return found

    def _whole(self, engines: Sequence[Engines]) -> tuple[Forecast, float, bool]:
        """Predict a step like the last one.

        Returns the forecast, the tokens of its responses, and whether the longest are best started
        first.
        """
        group, lengths, jobs, totals = self.model.asked_for()
        first = [jobs[n] for n in leaders_order(group, lengths)] if self._leaders else jobs
        plan = self._plan(engines, first, totals, self.model.drag.value)
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
        """Expected number of sampled tokens of each response in all.

        Args:
            most: of a sequence.
        """
        limits = [most - r.transcript.num_sampled + r.sequences.num_sampled for r in rollouts]
        return np.minimum(self.model.lengths.scenario(state), limits)

    def _plan(
        self,
        engines: Sequence[Engines],
        jobs: Sequence[ForecastJob],
        tokens: Sequence[float],
        drag: float,
    ) -> ForecastPlan:
        return ForecastPlan(
            engines=engines, jobs=jobs, tokens=tokens, learner=self.model.learner, drag=drag
        )

    def _engines(self, sides: Sequence[Sequence[Instance]]) -> tuple[list[Engines], dict[str, int]]:
        """Engines by kind and pace, reserved ones first, and each instance's place in them.

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
        """For each request, tokens its holder must have sampled since its last report."""
        unheard: dict[int, float] = {}
        for instance in instances:
            rates, span = self.model.rates(instance), instance.activity.span
            if rates is None or span is None:
                continue
            running = list(instance.held.items())[: instance.slots]
            context = sum(rollout.transcript.length for _, rollout in running)
            seconds = rates.step_seconds(len(running), context) * self.model.speeds.factor(
                instance.name
            )
            steps = (now - span.since) / seconds if seconds > 0 else 0.0
            for request, rollout in running:
                room = rollout.transcript.room(rollout.sequences.sampling) - 1
                unheard[request] = max(0.0, min(steps - span.steps.get(request, 0), room))
        return unheard


def _so_far(groups: Sequence[Sequence[Rollout]]) -> Responses:
    """Tokens sampled so far. When a parked response resumes is unknown, so it counts as waiting."""
    return responses([[(r.sequences.num_sampled, r.finished) for r in g] for g in groups])


def _given(rollouts: Sequence[Rollout]) -> Floats:
    """Number of prompt tokens and of tokens given since, for each rollout."""
    return np.array([r.sequences.length - r.sequences.num_sampled for r in rollouts], float)
