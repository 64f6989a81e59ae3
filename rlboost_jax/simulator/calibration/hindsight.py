"""What a manager would have predicted after each step, from what every run records of itself.

A manager that chooses by forecasts writes them down (`reducer/sizing.py`). One that does not is
spared the work, since some forecasts after every step would hold up the next one; they are made
here, by the same functions, from the lengths, the speeds and the fleet in `events.jsonl`.
"""

import statistics
from typing import Any, Final

from rlboost_jax.manager.policies.fleet_size import Hazard, Prices, Size, best_size, size_of
from rlboost_jax.manager.policies.forecast import (
    WAITS,
    Engines,
    Forecast,
    ForecastJob,
    ForecastPlan,
    best_window,
)
from rlboost_jax.manager.policies.learner_pace import LearnerPace
from rlboost_jax.manager.policies.speeds import Rates
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.simulator.calibration.observed import Observed, ObservedStep
from rlboost_jax.simulator.calibration.run_calibration import parameters

NEWEST: Final = 12  # steps that advice is made from


def predictions(run: RunConfig, seen: Observed) -> list[dict[str, Any]]:
    """Return what an event `predicted` would hold for each of the newest steps, with its `step`.

    Speeds are fitted to all steps but the one that is predicted, so that it can tell how far
    off the forecast was.
    """
    return [_prediction(run, seen, step) for step in seen.steps[-NEWEST:]]


def _prediction(run: RunConfig, seen: Observed, step: ObservedStep) -> dict[str, Any]:
    others = [other for other in seen.steps if other.step != step.step + 1]
    values = parameters(others, seen)
    reserved = _rates(values, "reserved") or _rates(values, "instance")
    remote = _rates(values, "instance") or reserved
    assert reserved is not None and remote is not None, "a whole step has tokens"
    tokens = sum(other.tokens for other in others)
    learner = LearnerPace(
        seconds_per_token=sum(other.train_seconds for other in others) / max(1, tokens),
        micro_batch_groups=run.learner.micro_batch_prompts,
        fixed=run.deterministic,
    )
    jobs = [
        ForecastJob(
            group=group, context=step.prompt_tokens, remaining=max(1.0, length), place=WAITS
        )
        for group, lengths in enumerate(step.groups)
        for length in lengths
    ]
    totals = [sum(group) + step.prompt_tokens * len(group) for group in step.groups]
    own = Engines(count=seen.reserved_engines, slots=max(1, seen.reserved_slots), rates=reserved)

    def whole_step(instances: int) -> tuple[Forecast, float]:
        more = Engines(count=instances, slots=max(1, seen.slots), rates=remote)
        plan = ForecastPlan(engines=[own, more], jobs=jobs, tokens=totals, learner=learner)
        return best_window(plan), float(sum(map(sum, step.groups)))

    prices = _prices(run, seen)
    sizes: dict[int, Size] = {}

    def predicted(instances: int) -> Size:
        if instances not in sizes:
            overhead = values["beginning"] + values["publishing"]
            sizes[instances] = size_of(whole_step, instances, prices=prices, overhead=overhead)
        return sizes[instances]

    most, here = run.fleet.max_instances, round(step.instances_mean)
    wanted = best_size(predicted, time=prices.time, start=own.count, most=most).instances
    for size in (here - 1, here, here + 1):
        if 0 <= size <= most:
            predicted(size)
    return {
        "step": step.step,
        "instances": here,
        "wanted": wanted,
        "sizes": [
            [s.instances, s.step_seconds, s.window_seconds, s.tokens, s.dollars]
            for _, s in sorted(sizes.items())
        ],
        "losses_per_hour": prices.hazard.rate * 3600,
        "start_seconds": prices.start_seconds,
    }


def _rates(values: dict[str, float], name: str) -> Rates | None:
    """Rates of the reserved engines or of instances; None where none has worked."""
    terms = ("per_step", "per_token", "per_context_token", "per_prefilled_token")
    step, row, context, prefill = (values[f"{name}.{term}"] for term in terms)
    if not step + row + context:
        return None
    return Rates(step=step, row=row, context=context, prefill=prefill)


def _prices(run: RunConfig, seen: Observed) -> Prices:
    fleet = run.fleet
    return Prices(
        reserved=fleet.reserved_price_per_hour / 3600,
        instance=(seen.price_per_hour or fleet.price_per_hour) / 3600,
        pull=fleet.egress_dollars_per_gb * seen.pulled_bytes / 1e9,
        time=fleet.worth_per_hour / 3600,
        start_seconds=statistics.fmean(seen.starts) if seen.starts else 0.0,
        hazard=Hazard(seen.losses, seen.instance_seconds),
        releases=fleet.merge_tail and bool(seen.starts),
    )
