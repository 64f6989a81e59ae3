"""Fit the settings of a simulation to a recorded run, and test the fit.

Each model is as simple as what a run can tell: an engine's time is linear in its decode steps,
tokens, tokens of context and prefilled tokens; a learner's in micro-batches and tokens; everything
else is a mean. Of lengths nothing is assumed: whole groups are drawn from those seen.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlboost_jax.platform import durable
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.simulator.calibration.acceptance import Drafting, by_position, drafting
from rlboost_jax.simulator.calibration.fits import non_negative, resampled, weighted
from rlboost_jax.simulator.calibration.observed import MOST_DRAFTS, Observed, ObservedStep, observed
from rlboost_jax.simulator.intervals import half_width
from rlboost_jax.simulator.sim_config_loading import sim_config_from_dict
from rlboost_jax.simulator.systems import FOREVER
from rlboost_jax.simulator.world import World

FILE: Final = "calibration.json"
LEAST: Final = 1e-9  # seconds or tokens: what a model must not have at exactly nothing
FREE: Final = 1e18  # bytes per second of a link that no time was seen to go by on
MAX_GROUPS: Final = 4096  # that lengths are drawn from: the last ones
SEEDS: Final = 4  # of the simulation that is held against a run
Settings = dict[str, dict[str, Any]]


def calibrate(
    run: RunConfig, workdir: str | Path, *, base: Mapping[str, Any], settling: int
) -> dict[str, Any]:
    """Fit all models to a run, test them on half of its steps, write `calibration.json`.

    Args:
        base: a simulation's configuration, for what no run tells.
        settling: steps at the beginning that are left out.

    Returns:
        what was written: `settings` of a simulation by section, `parameters` with values and
        half widths of 95 % intervals, `acceptance` of drafts with the steps from which on it
        holds, and `check`: models fitted to the even steps against the odd ones.

    Raises ConfigError where the run has too few steps.
    """
    seen = observed(workdir, settling=settling)
    values = parameters(seen.steps, seen)
    widths = resampled(lambda steps: parameters(steps, seen), seen.steps)
    found = {
        "steps": len(seen.steps),
        "parameters": {
            name: {"value": value, "half_width": widths[name]} for name, value in values.items()
        },
        "settings": settings(run, seen, seen.steps, values),
        "acceptance": by_position(seen.steps),
        "check": check(run, seen, base),
    }
    durable.write(Path(workdir) / FILE, (json.dumps(found, allow_nan=False) + "\n").encode())
    return found


def parameters(steps: Sequence[ObservedStep], seen: Observed) -> dict[str, float]:
    """Fit all parameters, by name; seconds, unless the name says otherwise."""
    means = {
        name: statistics.fmean(getattr(step, name) for step in steps)
        for name in ("beginning", "publishing", "announcing")
    }
    pulls = [seconds for step in steps for seconds in step.pulls]
    per_step, per_token = _training(steps)
    return {
        **_engine(steps, "instance", reserved=False),
        **_engine(steps, "reserved", reserved=True),
        "trainer.per_step": per_step,
        "trainer.per_token": per_token,
        **means,
        "pull": statistics.fmean(pulls) if pulls else 0.0,
        "start": statistics.fmean(seen.starts) if seen.starts else 0.0,
        "length_tokens": statistics.fmean(n for step in steps for g in step.groups for n in g),
    }


def _engine(steps: Sequence[ObservedStep], name: str, *, reserved: bool) -> dict[str, float]:
    """Fit seconds = a · steps + b · tokens + c · tokens of context + d · prefilled tokens."""
    work = [w for step in steps for w in step.work if w.reserved == reserved]
    rows = np.array([(w.decode_steps, w.tokens, w.context, w.prefilled) for w in work], np.float64)
    seconds = np.array([w.seconds for w in work])
    found = weighted(rows, seconds) if len(work) else np.zeros(4)
    terms = ("per_step", "per_token", "per_context_token", "per_prefilled_token")
    return {f"{name}.{term}": float(x) for term, x in zip(terms, found, strict=True)}


def _training(steps: Sequence[ObservedStep]) -> tuple[float, float]:
    rows = np.array([(1.0, step.tokens) for step in steps])
    per_step, per_token = non_negative(rows, np.array([step.train_seconds for step in steps]))
    return float(per_step), float(per_token)


def settings(
    run: RunConfig, seen: Observed, steps: Sequence[ObservedStep], values: Mapping[str, float]
) -> Settings:
    """Return the settings of the run's simulation, by section of its configuration."""
    model, learner, manager = run.model, run.learner, run.manager
    longest = run.slot_tokens
    slots = max(seen.slots, seen.reserved_slots)
    micro_batches = -(-learner.prompts_per_step // learner.micro_batch_prompts)
    weight_bytes = 4.0  # of a model of one parameter: only times were seen, not sizes
    groups = [group for step in steps for group in step.groups][-MAX_GROUPS:]
    drafts = drafting(w for step in steps for w in step.work)
    own = "instance" if values["instance.per_step"] + values["instance.per_token"] else "reserved"
    return {
        "chip": {"memory_bytes": 1e3 * slots * longest * model.num_layers * model.head_dim},
        "model": {
            "num_params": 1.0,
            "num_layers": 1,
            "num_query_heads": 1,
            "num_key_heads": 1,
            "head_dim": 1,
            "bytes_per_param": weight_bytes,
        },
        "engine": {
            "chips": 1,
            "slots": seen.slots,
            "reserved_slots": seen.reserved_slots,
            "reserve_ratio": 0.0,
            "memory_fraction": 1.0,
            "dispatch_tokens": run.engine.steps_per_dispatch,
            "message_tokens": run.engine.steps_per_dispatch,
            "table": _table(values, own, seen.slots, longest),
            "reserved_table": _table(values, "reserved", seen.reserved_slots, longest),
            "prefill_token_seconds": max(LEAST, values[f"{own}.per_prefilled_token"]),
            **_drafts(drafts, slots),
        },
        "reserved": {
            "nodes": 1,
            "chips_per_node": seen.reserved_engines,
            "price_per_node_hour": max(LEAST, run.fleet.reserved_price_per_hour),
        },
        "trainer": {
            "deterministic": run.deterministic,
            "micro_batch_prompts": learner.micro_batch_prompts,
            "micro_batch_seconds": values["trainer.per_step"] / micro_batches,
            "token_seconds": max(LEAST, values["trainer.per_token"]),
            "pair_seconds": 0.0,
            "apply_seconds": 0.0,
            "switch_seconds": 0.0,
            "begin_seconds": values["beginning"],
        },
        "workload": {
            "prompts_per_step": learner.prompts_per_step,
            "group_size": run.algorithm.group_size,
            "prompt_tokens": max(1, round(statistics.fmean(s.prompt_tokens for s in steps))),
            "max_response_tokens": run.sampling.max_response_tokens,
            "mean_tokens": values["length_tokens"],
            "growth_per_step": 0.0,
            "groups": groups,
        },
        "links": {
            "host_bytes_per_second": weight_bytes / max(LEAST, values["publishing"]),
            "sender_bytes_per_second": FREE,
            "receiver_bytes_per_second": FREE,
            "load_bytes_per_second": weight_bytes / max(LEAST, values["pull"]),
            "latency_seconds": values["announcing"],
        },
        "instance": {
            "start_seconds": values["start"],
            "price_per_hour": seen.price_per_hour or run.fleet.price_per_hour,
        },
        "policy": {
            "max_pending": manager.max_pending,
            "balance": manager.balance,
            "migration": manager.migration,
            "seeding": manager.seeding,
            "window_initial_seconds": manager.window_initial_seconds,
            "window_eta": manager.window_eta,
            "window_memory": manager.window_memory,
            "siblings_follow": "siblings" in run.speculation.used,
        },
    }


def _drafts(found: Drafting | None, slots: int) -> dict[str, Any]:
    """Return what engines draft, as settings of an engine. There are none in a run without."""
    if found is None:
        return {"most_drafts": 0}
    return {
        "most_drafts": MOST_DRAFTS,
        "draft_acceptance": found.acceptance,
        "token_rows": max(slots, found.rows),
    }


def _table(
    values: Mapping[str, float], name: str, slots: int, longest: int
) -> list[tuple[float, float, float]]:
    """Tabulate an engine's law, linear in the batch and in batch · context, by four points."""
    base, token, context = (
        values[f"{name}.{term}"] for term in ("per_step", "per_token", "per_context_token")
    )
    if not base + token + context:
        return []
    return [
        (float(batch), float(length), max(LEAST, base + batch * (token + context * length)))
        for batch in dict.fromkeys((1, slots))
        for length in (0, longest)
    ]


def check(run: RunConfig, seen: Observed, base: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a model fitted to the even steps with the mean time of the odd ones."""
    fitted = [step for step in seen.steps if step.step % 2 == 0]
    held_out = [step for step in seen.steps if step.step % 2]
    if not fitted or not held_out:
        raise ConfigError("the run's whole steps are all even or all odd; run for longer")
    values = settings(run, seen, fitted, parameters(fitted, seen))
    predicted = [
        seconds
        for seed in range(SEEDS)
        for seconds in predict(base, values, seen, steps=[s.step for s in held_out], seed=seed)
    ]
    measured = [step.seconds for step in held_out]
    return {
        "fitted_steps": len(fitted),
        "predicted_steps": len(held_out),
        "measured_seconds": statistics.fmean(measured),
        "predicted_seconds": statistics.fmean(predicted),
        "ratio": statistics.fmean(predicted) / statistics.fmean(measured),
        "measured_half_width": half_width(measured),
        "steps": {str(s.step): s.seconds for s in held_out},
    }


def predict(
    base: Mapping[str, Any],
    values: Settings,
    seen: Observed,
    *,
    steps: Sequence[int],
    seed: int,
) -> list[float]:
    """Simulate the same steps with the run's own fleet, and return their times."""
    plain = {
        section: {**own, **values.get(section, {})} if isinstance(own, dict) else own
        for section, own in base.items()
    }
    plain |= {"num_steps": max(steps) + 1, "settling_steps": 0, "calibration": ""}
    plain["instance"]["start_seconds"] = 0.0  # the fleet's times are those of joining
    config = sim_config_from_dict(plain)
    rows = World(config, seen.changes, seed=seed, seconds=FOREVER).run()
    return [rows[step]["step_seconds"] for step in steps]
