"""A finished step, and its row of `metrics.jsonl`; the names are `observe.metrics.KEYS`."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from rlboost_jax import messages
from rlboost_jax.algorithms.advantages import differ
from rlboost_jax.learner.episodes.shown_samples import reward_parts
from rlboost_jax.learner.episodes.trajectory import Trajectory, trajectories_digest
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.session import Session
from rlboost_jax.observe.metrics import DISTILLED, REPORTED, SUMMED
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.sequences.identities import Version


@dataclass(frozen=True, kw_only=True)
class FinishedStep:
    """Facts about a step that is over, for its observers."""

    step: int
    version: Version  # that sampled the batch
    trajectories: tuple[Trajectory, ...]  # as they arrived, in (prompt, sample) order
    trained: Sequence[Trajectory]  # the same with the advantages that they were trained with
    figures: Mapping[str, float]  # of `BatchUpdate.finish`
    score: Score | None  # of the version; None: it was not evaluated beside this step
    report: messages.BatchReport  # the manager's
    prompts_used: int  # of the prompt stream, up to this step
    params_digest: str  # of the version that the step made
    durable_step: int  # newest checkpoint on disk
    copied_step: int | None  # and in `checkpoint.copy_to`
    train_seconds: float
    train_wait_seconds: float  # idle for want of a micro-batch
    publish_seconds: float  # for the copy of the parameters to the host
    step_seconds: float  # since the step before was over


def row_of(finished: FinishedStep, session: Session) -> dict[str, Any]:
    """Row of metrics of a step."""
    trajectories, figures = finished.trajectories, finished.figures
    exercises = session.exercises
    return {
        "step": finished.step,
        "version": finished.version,
        **score_metrics(finished.score),
        "prompts_used": finished.prompts_used,
        **policy_metrics(trajectories, figures, stop_ids=exercises.stop_ids, stops=exercises.stops),
        **lag_metrics(finished.step - finished.version, figures),
        "learner_devices": session.learner.policy.mesh.size,
        "train_seconds": finished.train_seconds,
        "train_wait_seconds": finished.train_wait_seconds,
        "publish_seconds": finished.publish_seconds,
        **report_metrics(finished.report, trajectories),
        **(episode_metrics(trajectories) if session.episodes else {}),
        "trajectories_digest": trajectories_digest(trajectories),
        "params_digest": finished.params_digest,
        "durable_step": finished.durable_step,
        "copied_step": finished.copied_step,
        "step_seconds": finished.step_seconds,
    }


def score_metrics(score: Score | None) -> dict[str, Any]:
    """Scores of the policy before the update; None where it was not evaluated."""
    return {
        "accuracy": score.accuracy if score else None,
        "pass_at_k": score.best if score and score.samples > 1 else None,
        **{f"accuracy/{name}": value for name, value in (score.sources if score else {}).items()},
    }


def final_metrics(score: Score, report: messages.BatchReport, *, num_steps: int) -> dict[str, Any]:
    """Row after the last step: the evaluation of the final parameters.

    Args:
        report: what the manager counted meanwhile. With it the rows add up to the whole run.
    """
    summed = (*SUMMED, "instances_left", "cost_between_dollars", "tokens_measured")
    return {
        "step": num_steps,
        "version": num_steps,
        "final": True,
        **score_metrics(score),
        **{name: getattr(report, name) for name in REPORTED if name in summed},
        "tokens_delivered": 0,
    }


def policy_metrics(
    trajectories: Sequence[Trajectory],
    figures: Mapping[str, float],
    *,
    stop_ids: Collection[int],
    stops: bytes = b"",
) -> dict[str, Any]:
    """Metrics of the batch.

    Responses left out have no reward that counts, but their tokens were sampled.

    Args:
        figures: of `BatchUpdate.finish`.
        stop_ids: that end a response; one without is cut off.
        stops: of the stop strings, which end one, too.
    """
    counted = [t for t in trajectories if not t.left_out]
    rewards = np.array([t.reward for t in counted])
    lengths = np.array([t.num_sampled for t in trajectories])
    return {
        "reward_mean": float(rewards.mean()) if counted else None,
        "reward_std": float(rewards.std()) if counted else None,
        "reward_failures": sum(bool(t.verdict.faults) for t in trajectories),
        "episodes_left_out": len(trajectories) - len(counted),
        "groups_filled_up": len({t.prompt for t in trajectories if t.fills_up}),
        "loss": figures["loss"],
        "kl": figures["kl"],
        "entropy": figures["entropy"],
        "clip_fraction": figures["clipped"],
        "max_logprob_gap": figures["max_logprob_gap"],
        "max_choice_gap": figures["max_choice_gap"],
        "max_mean_choice_gap": figures["max_mean_choice_gap"],
        "rounded_choices": figures["rounded_choices"],
        "response_tokens": int(lengths.sum()),
        "response_length_mean": float(lengths.mean()),
        "response_length_max": int(lengths.max()),
        "corrected_fraction": figures.get("corrected"),
        "value_loss": figures.get("value_loss"),
        "gradient_norm": figures["gradient_norm"],
        "learning_rate": figures["learning_rate"],
        "truncated_fraction": fmean(
            not stopped(t.sequences[-1].newest_turn, stop_ids, stops) for t in trajectories
        ),
        "uniform_groups_fraction": _uniform(counted),
        **reward_parts(counted),
        **({DISTILLED: figures["teacher_kl"]} if "teacher_kl" in figures else {}),
    }


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Metrics of a batch's episodes, in a run with an environment.

    `environment/NAME` is the mean of an environment's own metric over the episodes that have it.
    """
    accounts = [t.verdict.account for t in trajectories]
    calls = [call for account in accounts for call in account.calls]
    named: dict[str, list[float]] = {}
    for t in trajectories:
        if t.left_out:
            continue
        for name, value in t.verdict.account.metrics.items():
            named.setdefault(name, []).append(value)
    return {
        "turns_mean": fmean(len(t.turns) for t in trajectories),
        "sequences_mean": fmean(len(t.sequences) for t in trajectories),
        "tool_calls": len(calls),
        "tool_failures": sum(call.failed for call in calls),
        "environment_seconds": math.fsum(account.seconds for account in accounts),
        "tokens_retokenised": sum(account.tokens_retokenised for account in accounts),
        **{f"environment/{name}": fmean(values) for name, values in named.items()},
    }


def _uniform(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of groups whose rewards are all equal; None if no group has two rewards."""
    rewards: dict[int, list[float]] = {}
    for trajectory in trajectories:
        rewards.setdefault(trajectory.prompt, []).append(trajectory.reward)
    groups = [group for group in rewards.values() if len(group) > 1]
    return fmean(not differ(group) for group in groups) if groups else None


def lag_metrics(lag: int, figures: Mapping[str, float]) -> dict[str, Any]:
    """Distance of the trained policy from the version that sampled, in runs with a lag.

    Args:
        figures: of `BatchUpdate.finish`.
    """
    return {
        "lag": lag,
        "ratio_mean": figures.get("ratio"),
        "behaviour_kl": figures.get("behaviour_kl"),
    }


def report_metrics(
    report: messages.BatchReport, trajectories: Sequence[Trajectory]
) -> dict[str, Any]:
    """Metrics of the fleet. Tokens delivered but not trained on count as lost in this step."""
    trained = sum(t.num_sampled for t in trajectories)
    filtered = report.tokens_delivered - trained
    cost = report.cost_dollars
    return {
        **{name: getattr(report, name) for name in REPORTED},
        "tokens_delivered": trained,
        "tokens_lost": report.tokens_lost + filtered,
        "tokens_filtered": filtered,
        "tokens_per_dollar": trained / cost if cost > 0 else None,
    }
