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
        "version": "of the policy that sampled the step; `step`, less `lag`",
        "prompts_used": "of the prompt stream, by this step and those before",
        "reward_mean": "of the step's responses",
        "reward_std": "standard deviation over the step's responses",
        "reward_failures": "responses for which a reward function failed and the fallback counts",
        "accuracy": "mean over responses to held-out prompts; null where not evaluated",
        "pass_at_k": "mean of the best response to each of them; null with one response a prompt",
        "loss": "of the policy, as it is minimised; mean of the step's updates",
        "kl": "to the reference, nats per token; 0 without one",
        "entropy": "of the policy, nats per token",
        "clip_fraction": "tokens whose gradient the clip stopped, of all",
        "response_tokens": "sampled, of all responses",
        "response_length_mean": "tokens",
        "response_length_max": "tokens",
        "step_seconds": "from the end of the step before",
        "rollout_seconds": "from the step's first request to its last token",
        "train_seconds": "the learner's, on micro-batches and updates",
        "publish_seconds": "copying the updated parameters to the host",
        "train_wait_seconds": "learner idle for want of groups, window excluded",
        "remote_wait_seconds": "servers idle while the learner finishes",
        "seeding_window_seconds": "in which reserved devices generate",
        "instances_mean": "preemptible ones, over the step",
        "instances_joined": "preemptible ones",
        "instances_lost": "preemptible ones that went away, with notice or without; neither those "
        "that were turned away nor those that were sent home",
        "requests_migrated": "that went on elsewhere with the tokens they had",
        "tokens_generated": "sampled by any engine, evaluation excluded",
        "tokens_delivered": "of these, in responses that were trained on",
        "tokens_lost": "of these, sampled and then discarded",
        "tokens_filtered": "of the lost, whole responses to prompts that dynamic sampling skipped",
        "tokens_prefilled_again": "the price of migration",
        "tokens_reserved": "of the generated, on reserved devices",
        "tokens_preemptible": "of the generated, on preemptible instances",
        "tokens_measured": "of evaluation, in none of the others",
        "cost_dollars": "since the end of the step before: see docs/how-to/observability.md",
        "tokens_per_dollar": "trained on",
        "cost_forecast_dollars": "of the whole run, were the rest like the last steps",
        "max_logprob_gap": "largest difference of a server's and the learner's log-probability of "
        "a token, nats",
        "trajectories_digest": "SHA-256 of what was sampled",
        "params_digest": "SHA-256 of the parameters after the step",
        "corrected_fraction": "tokens whose weight a correction's bound changed; null without one",
        "value_loss": "of the critic, per token; null without one",
        "lag": "versions between the one that sampled the step and the one that was trained",
        "ratio_mean": "of that policy to the version that sampled; null without `algorithm.lag`",
        "behaviour_kl": "from that version to that policy, nats per token; null without",
        "gradient_norm": "of the policy's gradient before clipping, mean of the step's updates",
        "learning_rate": "of the step's last update",
        "truncated_fraction": "responses that ran into `sampling.max_response_tokens`, of all",
        "uniform_groups_fraction": "groups whose rewards are all equal, of all: they teach a "
        "comparison within groups nothing; null with one response a prompt",
        "cost_between_dollars": "of `cost_dollars`, before the step's first request: the pause "
        "after the step before, or start and warm-up",
        "line_round_trip_median": "over preemptible instances at the end of the step: seconds from "
        "a renewal of a lease to its answer; null without an instance whose line is known",
        "line_round_trip_worst": "of the farthest of them, seconds",
        "line_losses_median": "share of packets that a line loses, as far as its round trips tell",
        "line_losses_worst": "of the line that loses most",
        "lease_seconds_median": "that a server may be silent for before it counts as lost",
        "lease_seconds_worst": "the longest: work of a server that dies there waits that long",
        "parked_share": "of the step's unfinished responses, those that wait for their "
        "environment, averaged over time; null without environments, as those that follow are",
        "turns_mean": "of a response, in all its sequences",
        "sequences_mean": "of a response; more than 1 where conversations were rewritten",
        "returned_share": "of the times that a response went on after an answer, those where it "
        "did so at the server that it came from",
        "tool_calls": "that the step's responses made",
        "tool_failures": "of these, that could not be carried out, or whose tool raised",
        "environment_seconds": "in steps, resets and tools, summed over the step's responses",
        "tokens_retokenised": "tokens of later sequences' prompts that stand for sampled turns, "
        "encoded again from text; 0 unless `environment.unstable_template` is `new_sequence` or "
        "`environment.thinking` is `drop`",
        "episodes_left_out": "responses whose reward nobody knows, since their environment failed "
        "or no reward function says anything: in no loss and in no group's mean",
        "groups_filled_up": "groups that `algorithm.dynamic_sampling` took for want of ones whose "
        "rewards differ: they have no part in the update",
        "slots_lent_mean": "slots of preemptible servers that others on their devices had, "
        "averaged over the step: docs/how-to/shared-machines.md",
        "instances_frozen_mean": "of these servers, those that grow again with the next step only",
        "rollouts_handed_back": "that they had no room for any more; they go on elsewhere",
        "learner_devices": "that the step was trained on: those of `learner.mesh`",
        "max_choice_gap": "largest probability between a token's interval and the noise that "
        "selected it; 0 where all tokens are those that the learner's numbers select",
        "max_mean_choice_gap": "largest mean choice gap of a response, with 64 tokens without a "
        "gap added; a server above a 64th of `learner.tolerated_choice_gap` is quarantined",
        "rounded_choices": "number of sampled tokens that rounding decided: their noise lies "
        "outside the interval that the learner computes, but within the tolerance",
        "durable_step": "step of the newest durable checkpoint: where the run would resume after "
        "a power cut at the end of this step. At best `step`; see `checkpoint.max_behind`",
        "instances_left": "of `instances_lost`, those that gave notice: a goodbye, with all their "
        "work handed over",
        "final": "true in the row after the last step, which has the evaluation of the final "
        "parameters and what was lost and paid meanwhile; null in the row of a step",
    }
)
KEYS: Final = tuple(MEANINGS)
DISTILLED: Final = "distillation/reverse_kl"
# Whose sum over the steps says something of the run.
SUMMED: Final = (
    *("cost_dollars", "step_seconds", "instances_joined", "instances_lost", "instances_left"),
    "requests_migrated",
    *("tokens_generated", "tokens_delivered", "tokens_lost", "tokens_reserved"),
    *("tokens_preemptible", "tokens_prefilled_again", "reward_failures"),
    *("tool_calls", "tool_failures", "episodes_left_out", "rollouts_handed_back"),
)


# Those that the manager counts, of a run as of a simulation.
REPORTED: Final = tuple(
    key for key in KEYS if key != "step" and key in BatchReport.__struct_fields__
)
# Of those, what a simulation knows nothing of: its servers have no lines.
LINES: Final = tuple(key for key in REPORTED if key.startswith(("line_", "lease_")))
# Of those, what only runs with environments have.
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
        "Every row of `metrics.jsonl` has these keys in this order; a number that a run does not\n"
        "have, or that is not finite, is null. There is a row for each step and, once all are\n"
        "done, one more for the evaluation of the final parameters (`final`). Trackers get the\n"
        "same numbers, and `report.html` plots most of them.\n\n"
        f"| key | what |\n|---|---|\n{lines}\n| `accuracy/NAME` | of the held-out prompts of the "
        "data set NAME, in a mixture; where evaluated. `accuracy` is their mean by weight |\n"
        "| `reward/NAME` | mean of what the reward function "
        "NAME gave; where there are several |\n"
        f"| `{DISTILLED}` | from the policy to its teachers, nats per token, estimated from what "
        "was sampled; with `distillation.teachers` |\n"
        "| `environment/NAME` | mean of what an environment "
        "counted as NAME (`Step.metrics`), over the episodes that have it |\n"
    )


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.observe.metrics", __doc__)
    print(document(), end="")
