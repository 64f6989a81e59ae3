"""Costs and savings of one more instance, from the manager's predictions step after step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A fleet of one size; means over the steps that predicted it."""

    instances: int
    step_seconds: float
    tokens_per_second: float
    dollars_per_step: float
    tokens_per_dollar: float
    steps: int  # that predicted it


@dataclass(frozen=True, kw_only=True)
class Advice:
    here: int  # instances, when it was predicted last
    wanted: int
    offers: tuple[Offer, ...]  # by size
    sure: float  # share of steps that would rather have `wanted` than `here`, or as few or many
    error: float  # of predicted step times, root mean square relative; nan: nothing to compare
    losses_per_hour: float  # of one instance
    start_seconds: float


def advise(predictions: Sequence[Mapping[str, Any]], step_seconds: Mapping[int, float]) -> Advice:
    """Advise on one more instance, from predictions of steps.

    Args:
        predictions: what events of the kind `predicted` say, with their `step`, oldest first.
        step_seconds: of the steps, as they came to be.

    Raises ValueError where nothing was predicted.
    """
    if not predictions:
        raise ValueError("nothing was predicted")
    rows: dict[int, list[tuple[float, float, float]]] = {}  # size → seconds, tokens, dollars
    errors = []
    for event in predictions:
        for instances, seconds, _, tokens, dollars in event["sizes"]:
            rows.setdefault(int(instances), []).append((seconds, tokens, dollars))
            came = step_seconds.get(event["step"] + 1)
            if int(instances) == event["instances"] and came:
                errors.append((seconds / came - 1.0) ** 2)
    last = predictions[-1]
    wanted, here = int(last["wanted"]), int(last["instances"])
    agree = [_side(int(event["wanted"]), here) == _side(wanted, here) for event in predictions]
    return Advice(
        here=here,
        wanted=wanted,
        offers=tuple(_offer(instances, rows[instances]) for instances in sorted(rows)),
        sure=sum(agree) / len(agree),
        error=math.sqrt(sum(errors) / len(errors)) if errors else math.nan,
        losses_per_hour=float(last["losses_per_hour"]),
        start_seconds=float(last["start_seconds"]),
    )


def report(advice: Advice) -> str:
    """Format the advice for people."""
    lines = [f"{'instances':>9} {'step s':>8} {'tokens/s':>9} {'$/step':>8} {'tokens/$':>10}"]
    for offer in advice.offers:
        mark = " here" * (offer.instances == advice.here)
        mark += " best" * (offer.instances == advice.wanted)
        lines.append(
            f"{offer.instances:>9} {offer.step_seconds:>8.4g} {offer.tokens_per_second:>9,.0f} "
            f"{offer.dollars_per_step:>8.4g} {offer.tokens_per_dollar:>10,.0f}{mark}"
        )
    many = "as many as there are" if advice.wanted == advice.here else str(advice.wanted)
    lines.append(f"have {many}: {advice.sure:.0%} of the steps say so")
    if not math.isnan(advice.error):
        lines.append(f"step times came out within {advice.error:.1%} of what was predicted (rms)")
    lines.append(
        f"an instance is lost {advice.losses_per_hour:.2g} times an hour and takes "
        f"{advice.start_seconds:.3g} s to start"
    )
    return "\n".join(lines)


def _offer(instances: int, rows: Sequence[tuple[float, float, float]]) -> Offer:
    seconds, tokens, dollars = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return Offer(
        instances=instances,
        step_seconds=seconds,
        tokens_per_second=tokens / seconds,
        dollars_per_step=dollars,
        tokens_per_dollar=tokens / dollars if dollars else math.inf,
        steps=len(rows),
    )


def _side(wanted: int, here: int) -> int:
    """Sign of the difference: 1 if more are wanted, -1 if fewer, 0 if as many."""
    return (wanted > here) - (wanted < here)
