"""`metrics.jsonl`: one object per step, always with the same keys in the same order.

Numbers that only some runs have (the parts of a reward, say) follow these, named `group/name`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.messages import BatchReport
from rlboost_jax.observe.lines import Scalar, read_lines, scalar

FILE: Final = "metrics.jsonl"

KEYS: Final = (
    "step",
    "version",  # of the policy that sampled the step
    "prompts_used",  # of the prompt stream, by this step and those before
    "reward_mean",
    "reward_std",
    "reward_failures",  # responses for which a reward function failed and the fallback counts
    "accuracy",  # mean over responses to held-out prompts; null where not evaluated
    "pass_at_k",  # mean of the best response to each; null with one response per prompt
    "loss",
    "kl",  # to the reference, nats per token
    "entropy",  # nats per token
    "clip_fraction",
    "response_tokens",
    "response_length_mean",
    "response_length_max",
    "step_seconds",  # from the end of the step before
    "rollout_seconds",
    "train_seconds",
    "publish_seconds",  # copying the updated parameters to the host
    "train_wait_seconds",  # learner idle for want of groups, window excluded
    "remote_wait_seconds",  # servers idle while the learner finishes
    "seeding_window_seconds",
    "instances_mean",
    "instances_joined",
    "instances_lost",
    "requests_migrated",
    "tokens_generated",
    "tokens_delivered",
    "tokens_lost",
    "tokens_filtered",  # of these, whole responses to prompts that dynamic sampling passed over
    "tokens_prefilled_again",
    "tokens_reserved",
    "tokens_preemptible",
    "tokens_measured",  # of evaluation, in none of the others
    "cost_dollars",
    "tokens_per_dollar",
    "cost_forecast_dollars",  # of the whole run, were the rest like the last steps
    "max_logprob_gap",  # nats
    "trajectories_digest",
    "params_digest",  # after the step
    "corrected_fraction",  # tokens whose weight a correction's bound changed; null without one
    "value_loss",  # of the critic, per token; null without one
)


# Those that the manager counts, of a run as of a simulation.
REPORTED: Final = tuple(
    key for key in KEYS if key != "step" and key in BatchReport.__struct_fields__
)


def metrics_row(row: Mapping[str, Any]) -> dict[str, Scalar]:
    """A row with all keys, null where `row` has none or a number that is not finite.

    Raises ValueError for a key that no row has and that is of no group, or a row without its
    step.
    """
    more = [key for key in row if key not in KEYS]
    if unknown := sorted(key for key in more if "/" not in key):
        raise ValueError(
            f"unknown metrics {unknown}; the keys are in {__name__}.KEYS, others are group/name"
        )
    if row.get("step") is None:
        raise ValueError("a row needs its step")
    return {key: scalar(row.get(key)) for key in (*KEYS, *more)}


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """The rows written so far, in order; none where there is no file."""
    return list(read_lines(Path(workdir) / FILE))
