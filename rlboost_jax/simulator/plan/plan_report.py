"""A plan for a person."""

from collections.abc import Iterator
from typing import Final

from rlboost_jax.simulator.plan.planning import PlanLimits, PlanRow, PurchasePlan, settings_of
from rlboost_jax.simulator.plan.purchase import Purchase

WIDEST: Final = 40  # characters of a mix's name in the table


def report(found: PurchasePlan, purchase: Purchase, limits: PlanLimits, *, others: int) -> str:
    """Describe a plan for people, in lines.

    Args:
        others: number of rows outside the Pareto front that are shown.
    """
    return "\n".join(_lines(found, purchase, limits, others))


def _lines(
    found: PurchasePlan, purchase: Purchase, limits: PlanLimits, others: int
) -> Iterator[str]:
    best = [row for row in found.rows if row.best]
    rest = [row for row in found.rows if not row.best][:others]
    several = len(purchase.learners) > 1
    width = min(WIDEST, max(len(_name(row, several)) for row in (*best, *rest)))
    yield _head(width, limits)
    for row in (*best, *rest):
        marks = " best" * row.best + " <- chosen" * (row is found.chosen)
        marks += " needs deterministic=False" * row.mixed
        yield _row(row, width, limits, several) + marks
    yield (
        f"{found.space:,} mixes: {len(found.found.samples):,} simulated, "
        f"{found.found.ruled_out:,} ruled out by bounds, {found.found.left:,} not looked at"
    )
    if not found.exact:
        yield "not exhaustive: one of those not looked at may be better than the best here"
    if not found.kept:
        yield f"no mix keeps to the limits with a risk of {limits.risk:.0%} or less"
    if (limit := found.price_limit(purchase)) is not None:
        alone = found.alone
        yield (
            f"the learner alone: {alone.hours.mean:.2f} hours, {alone.dollars.mean:.2f} dollars; "
            f"the chosen mix {_until(limit)}"
        )
    yield f"to have {found.chosen.name}:"
    for line in settings_of(purchase, found.chosen):
        yield f"    {line}"


def _until(limit: float) -> str:
    if limit <= 0:
        return "makes fewer tokens per dollar, whatever its instances cost"
    return f"makes more tokens per dollar until its instances cost {limit:.2f} times as much"


def _head(width: int, limits: PlanLimits) -> str:
    line = f"{'mix':<{width}} {'hours':>8} {'±':>6} {'worst':>7} {'dollars':>9} {'±':>7} "
    line += f"{'worst':>8} {'tokens/$':>9}"
    line += f" {'late':>5}" if limits.hours else ""
    return line + (f" {'over':>5}" if limits.dollars else "")


def _row(row: PlanRow, width: int, limits: PlanLimits, several: bool) -> str:
    hours, dollars = row.hours, row.dollars
    line = f"{_name(row, several):<{width}} {hours.mean:>8.2f} {hours.half_width:>6.2f} "
    line += f"{hours.worst:>7.2f} {dollars.mean:>9.2f} {dollars.half_width:>7.2f} "
    line += f"{dollars.worst:>8.2f} {row.tokens_per_dollar:>9,.0f}"
    line += f" {row.late:>5.0%}" if limits.hours else ""
    return line + (f" {row.over:>5.0%}" if limits.dollars else "")


def _name(row: PlanRow, several: bool) -> str:
    return f"{row.shape}: {row.name}" if several else row.name
