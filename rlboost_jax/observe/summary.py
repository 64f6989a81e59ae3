"""Summary of a run in a few numbers and one sentence.

`summary.json` holds them once a run is over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from rlboost_jax.observe.cost import comparison, total
from rlboost_jax.observe.departures import ServerCounts, losses_text
from rlboost_jax.observe.metrics import steps_of
from rlboost_jax.platform import durable, foreign_json

FILE: Final = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Numbers of a run; None where nothing was measured."""

    steps: int
    seconds: float  # of all steps; start, warm-up and evaluations are not in it
    first_accuracy: float | None
    last_accuracy: float | None
    first_reward: float | None
    last_reward: float | None
    instances_joined: int
    instances_lost: int
    requests_migrated: int
    tokens_generated: int
    tokens_lost: int
    max_logprob_gap: float | None
    cost_dollars: float  # with start and warm-up
    steps_dollars: float | None = None  # of these, what can be compared with the next
    reserved_only_dollars: float | None  # for these on the reserved devices alone; see cost.py
    turns_mean: float | None = None  # of an episode, mean of the steps; without an environment None
    tool_calls: int = 0
    tool_failures: int = 0  # of these
    episodes_left_out: int = 0
    tokens_drafted: int = 0
    drafts_accepted: int = 0  # of these
    decode_steps_saved: int = 0  # by these
    dollars_saved: float = 0.0  # with these, about
    instances_left: int = 0  # of the lost, with notice
    params_digest: str = ""  # after the last step; "" where there is none


def summarize(rows: Sequence[Mapping[str, Any]], *, reserved_price_per_hour: float) -> Summary:
    """Summarise a run from the rows of its steps.

    Args:
        rows: of steps, with that of the final evaluation if there is one.
    """
    steps = steps_of(rows)
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    rewards = [row["reward_mean"] for row in steps if row["reward_mean"] is not None]
    compared = comparison(rows, reserved_price_per_hour=reserved_price_per_hour)
    gaps = [row["max_logprob_gap"] for row in steps if row["max_logprob_gap"] is not None]
    turns = [row["turns_mean"] for row in steps if row.get("turns_mean") is not None]
    digests = [row.get("params_digest") or "" for row in steps]
    return Summary(
        steps=len(steps),
        seconds=total(rows, "step_seconds"),
        first_accuracy=accuracies[0] if accuracies else None,
        last_accuracy=accuracies[-1] if accuracies else None,
        first_reward=rewards[0] if rewards else None,
        last_reward=rewards[-1] if rewards else None,
        instances_joined=int(total(rows, "instances_joined")),
        instances_lost=int(total(rows, "instances_lost")),
        requests_migrated=int(total(rows, "requests_migrated")),
        tokens_generated=int(total(rows, "tokens_generated")),
        tokens_lost=int(total(rows, "tokens_lost")),
        max_logprob_gap=max(gaps) if gaps else None,
        cost_dollars=total(rows, "cost_dollars"),
        steps_dollars=compared.run if compared else None,
        reserved_only_dollars=compared.reserved_only if compared else None,
        turns_mean=fmean(turns) if turns else None,
        tool_calls=int(total(rows, "tool_calls")),
        tool_failures=int(total(rows, "tool_failures")),
        episodes_left_out=int(total(rows, "episodes_left_out")),
        tokens_drafted=int(total(rows, "tokens_drafted")),
        drafts_accepted=int(total(rows, "drafts_accepted")),
        decode_steps_saved=int(total(rows, "decode_steps_saved")),
        dollars_saved=total(rows, "dollars_saved"),
        instances_left=int(total(rows, "instances_left")),
        params_digest=digests[-1] if digests else "",
    )


def write_summary(workdir: str | Path, summary: Summary) -> None:
    durable.write(Path(workdir) / FILE, (json.dumps(asdict(summary), indent=2) + "\n").encode())


def read_summary(workdir: str | Path) -> Summary | None:
    """Read `summary.json`; None if it is missing or damaged: the rows have the numbers."""
    try:
        return msgspec.convert(foreign_json.read(Path(workdir) / FILE, dict), Summary)
    except (FileNotFoundError, ValueError):
        return None


def headline(summary: Summary) -> str:
    """The run in a sentence, such as "60 updates in 1 min 12 s took held-out accuracy from
    0.11 to 0.94, while 21 servers were lost and 22 joined."
    """
    if not summary.steps and summary.last_accuracy is not None:
        return f"No step is finished; held-out accuracy is {summary.last_accuracy:.2f}."
    if not summary.steps:
        return "No step is finished yet."
    updates = f"{summary.steps} update{'s' * (summary.steps != 1)} in {duration(summary.seconds)}"
    lost, joined = summary.instances_lost, summary.instances_joined
    tally = ServerCounts(joined=joined, lost=lost, left=summary.instances_left)
    if lost:
        fleet = f"while {losses_text(tally)}"
    elif joined:
        fleet = "while no server was lost"
    else:
        fleet = "without preemptible servers"
    if summary.first_accuracy is not None and summary.last_accuracy is not None:
        first, last, what = summary.first_accuracy, summary.last_accuracy, "held-out accuracy"
    elif summary.first_reward is not None and summary.last_reward is not None:
        first, last, what = summary.first_reward, summary.last_reward, "the mean reward"
    else:
        return f"{updates}, {fleet}."
    return f"{updates} took {what} from {first:.2f} to {last:.2f}, {fleet}."


def duration(seconds: float) -> str:
    """Format a duration for people: "8.5 s", "1 min 12 s", "3 h 20 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
