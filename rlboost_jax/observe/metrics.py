"""`metrics.jsonl`: one object per step, always with the same keys in the same order.

Numbers that only some runs have (the parts of a reward, say) follow these, named `group/name`.

    python -m rlboost_jax.observe.metrics > docs/reference/metrics.md
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rlboost_jax.messages import BatchReport
from rlboost_jax.observe.json_lines import Scalar, read_lines, scalar
from rlboost_jax.platform import command_parser

FILE: Final = "metrics.jsonl"

# What each number is, in the order of a row. `docs/reference/metrics.md` is made of it.
MEANINGS: Final = MappingProxyType(
    {
        "step": "number of the step, from 0",
        "version": "policy version that sampled the step: `step` less `lag`",
        "prompts_used": "prompts of the stream used so far",
        "reward_mean": "mean reward of the step's responses",
        "reward_std": "standard deviation of the step's rewards",
        "reward_failures": "responses for which a reward function failed",
        "accuracy": "mean over responses to held-out prompts; null where not evaluated",
        "pass_at_k": "mean of the best response to each held-out prompt; null with one response a "
        "prompt",
        "loss": "loss of the policy, to be minimised; mean of the step's updates",
        "kl": "KL to the reference, nats per token; 0 without one",
        "entropy": "entropy of the policy, nats per token",
        "clip_fraction": "share of tokens whose gradient the clip stopped",
        "response_tokens": "sampled tokens of all responses",
        "response_length_mean": "mean tokens of a response",
        "response_length_max": "tokens of the longest response",
        "step_seconds": "time since the end of the step before",
        "rollout_seconds": "time from the step's first request to its last token",
        "train_seconds": "the learner's time for micro-batches and updates",
        "publish_seconds": "time to copy the updated parameters to the host",
        "train_wait_seconds": "time that the learner waits for groups, after the window",
        "remote_wait_seconds": "time that servers wait for the learner",
        "seeding_window_seconds": "time in which reserved devices generate",
        "instances_mean": "mean number of preemptible instances in the step",
        "instances_joined": "preemptible instances that joined",
        "instances_lost": "preemptible instances that went away, with notice or without",
        "requests_migrated": "responses that resumed on another instance",
        "tokens_generated": "tokens sampled by any engine, evaluation excluded",
        "tokens_delivered": "generated tokens in responses that were trained on",
        "tokens_lost": "generated tokens that were discarded",
        "tokens_filtered": "lost tokens of whole responses to prompts that dynamic sampling "
        "skipped",
        "tokens_prefilled_again": "tokens prefilled again after migrations",
        "tokens_reserved": "tokens generated on reserved devices",
        "tokens_preemptible": "tokens generated on preemptible instances",
        "tokens_measured": "tokens of evaluation, which no other count has",
        "cost_dollars": "cost since the end of the step before",
        "tokens_per_dollar": "tokens trained on, per dollar",
        "cost_forecast_dollars": "cost of the whole run if it continues like the last steps",
        "max_logprob_gap": "largest difference of a server's and the learner's log-probability",
        "trajectories_digest": "SHA-256 of what was sampled",
        "params_digest": "SHA-256 of the parameters after the step",
        "corrected_fraction": "share of tokens whose weight a correction's bound changed; null "
        "without one",
        "value_loss": "loss of the critic, per token; null without one",
        "lag": "versions between the one that sampled the step and the one that was trained",
        "ratio_mean": "mean ratio of the trained policy to the version that sampled; null without "
        "a lag",
        "behaviour_kl": "KL from the version that sampled to the trained policy, nats per token; "
        "null without a lag",
        "gradient_norm": "norm of the policy's gradient before clipping, mean of the step's "
        "updates",
        "learning_rate": "learning rate of the step's last update",
        "truncated_fraction": "share of responses cut off at `sampling.max_response_tokens`",
        "uniform_groups_fraction": "share of groups whose rewards are all equal",
        "cost_between_dollars": "part of `cost_dollars` before the step's first request",
        "line_round_trip_median": "seconds from a renewal to its answer, median of preemptible "
        "instances",
        "line_round_trip_worst": "the same of the farthest instance",
        "line_losses_median": "share of packets lost between manager and instance, by round "
        "trips, median",
        "line_losses_worst": "the same of the worst connection",
        "lease_seconds_median": "silence after which an instance counts as lost, median",
        "lease_seconds_worst": "the longest such lease",
        "parked_share": "share of unfinished responses that wait for their environment; null "
        "without environments, like the following",
        "turns_mean": "mean turns of a response, in all its sequences",
        "sequences_mean": "mean sequences of a response; more than 1 where conversations were "
        "rewritten",
        "returned_share": "share of answered responses that resumed at the server that they came "
        "from",
        "tool_calls": "tool calls of the step's responses",
        "tool_failures": "tool calls that failed",
        "environment_seconds": "time in steps, resets and tools, summed over responses",
        "tokens_retokenised": "sampled tokens that later sequences' prompts encode again from text",
        "episodes_left_out": "responses without a reward: in no loss and in no group's mean",
        "groups_filled_up": "groups of equal rewards that fill up a batch of `dynamic_sampling`",
        "slots_lent_mean": "mean slots of preemptible servers lent to others on their devices",
        "instances_frozen_mean": "mean number of shared servers that grow again only with the "
        "next step",
        "rollouts_handed_back": "rollouts that shared servers returned for want of room",
        "learner_devices": "devices of `learner.mesh`",
        "max_choice_gap": "largest probability between a token's interval and the noise that "
        "selected it; 0 without rounding",
        "max_mean_choice_gap": "largest mean choice gap of a response, with 64 tokens without a "
        "gap added",
        "rounded_choices": "sampled tokens outside the learner's interval, within the tolerance",
        "durable_step": "newest durable checkpoint, where the run would resume after a power cut",
        "copied_step": "newest copy of a checkpoint in `checkpoint.copy_to`",
        "instances_left": "lost instances that handed over all their work",
        "tokens_drafted": "tokens that engines drafted, by renewals that came in the step; null "
        "without drafts, as the next three",
        "drafts_accepted": "drafted tokens that were the sampled ones",
        "decode_steps_saved": "decode steps that accepted drafts saved, all engines together",
        "dollars_saved": "estimate of what these steps would have cost: each engine's steps saved, "
        "at its price and its mean seconds of a decode step since it joined, prefill included; "
        "assumes that a step without drafts takes as long, and that shorter steps are paid for "
        "less long; null where nothing is billed",
        "weights_from_servers": "bytes of weights that servers had from each other; null where "
        "none have had any",
        "final": "true in the row after the last step: the evaluation of the final parameters",
    }
)
KEYS: Final = tuple(MEANINGS)
# Null without any.
DRAFTS: Final = ("tokens_drafted", "drafts_accepted", "decode_steps_saved", "dollars_saved")
DISTILLED: Final = "distillation/reverse_kl"
# Whose sum over the steps says something of the run.
SUMMED: Final = (
    *("cost_dollars", "step_seconds", "instances_joined", "instances_lost", "instances_left"),
    "requests_migrated",
    *("tokens_generated", "tokens_delivered", "tokens_lost", "tokens_reserved"),
    *("tokens_preemptible", "tokens_prefilled_again", "reward_failures"),
    *("tool_calls", "tool_failures", "episodes_left_out", "rollouts_handed_back"),
    *DRAFTS,
    "weights_from_servers",
)


# Keys that the manager counts, in a run as in a simulation.
REPORTED: Final = tuple(
    key for key in KEYS if key != "step" and key in BatchReport.__struct_fields__
)
# Keys that a simulation lacks, since its servers have no lines.
LINES: Final = tuple(key for key in REPORTED if key.startswith(("line_", "lease_")))
# Keys that only runs with environments have.
TURNS: Final = ("parked_share", "turns_mean", "sequences_mean", "returned_share")


def metrics_row(row: Mapping[str, Any]) -> dict[str, Scalar]:
    """Complete a row: all keys, null where `row` has none or a number that is not finite.

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


def read_rows(workdir: str | Path) -> list[dict[str, Any]]:
    """Read the rows written so far, in order, that of the final evaluation last.

    Empty if there is no file.
    """
    return list(read_lines(Path(workdir) / FILE))


def steps_of(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of steps: all but that of the final evaluation."""
    return [row for row in rows if not row.get("final")]


def read_metrics(workdir: str | Path) -> list[Mapping[str, Any]]:
    """Read the rows of steps."""
    return steps_of(read_rows(workdir))


def document() -> str:
    """Text of docs/reference/metrics.md."""
    lines = "\n".join(f"| `{key}` | {meaning} |" for key, meaning in MEANINGS.items())
    return (
        "# Metrics\n\n"
        "<!-- Made by `python -m rlboost_jax.observe.metrics > docs/reference/metrics.md`. -->\n\n"
        "Every row of `metrics.jsonl` has these keys in this order, with null for what a run does\n"
        "not have. Trackers get the same numbers, and `report.html` plots most of them.\n\n"
        f"| key | what |\n|---|---|\n{lines}\n| `accuracy/NAME` | accuracy on the "
        "data set NAME of a mixture; `accuracy` is the weighted mean |\n"
        "| `reward/NAME` | mean value of the reward function "
        "NAME, where there are several |\n"
        f"| `{DISTILLED}` | reverse KL from the policy to its teachers, nats per token, estimated "
        "from the sampled tokens |\n"
        "| `environment/NAME` | mean of an environment's metric "
        "NAME (`Step.metrics`) over the episodes that have it |\n"
    )


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.observe.metrics", __doc__)
    print(document(), end="")
