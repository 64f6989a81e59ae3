"""How much cheaper than reserved chips must preemptible ones be?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import COLOURS, Drawing, panels
from experiments.simulated import config_of, outcome
from rlboost_jax.simulator.economics import dollars, on_demand_price
from rlboost_jax.simulator.outcome import Outcome


def measure(
    *,
    instances: Sequence[int] = (1, 2, 4, 6),
    discounts: Sequence[float] = tuple(percent / 100 for percent in range(0, 100, 5)),
    seed: int = 0,
    small: bool = False,
) -> dict[str, Any]:
    """Instances → tokens per dollar over the co-located baseline at each discount, and the
    discount from which on they are more."""
    config = config_of("14b", small=small)
    baseline = outcome("colocated_static", config, 0, seed=seed)
    twice = outcome("colocated_2x", config, 0, seed=seed)
    full = on_demand_price(config)

    def at(own: Outcome, discount: float) -> float:
        price = full * (1 - discount)
        paid = sum(dollars(own.config, row, instance_price=price) for row in own.rows)
        tokens = sum(row["response_tokens"] for row in own.rows)
        return tokens / paid / baseline.tokens_per_dollar

    found: dict[str, Any] = {
        "discounts": list(discounts),
        "colocated_2x": twice.tokens_per_dollar / baseline.tokens_per_dollar,
        "charged_in_the_paper": 1 - config.instance.price_per_hour / full,
        "instances": {},
    }
    for count in instances:
        own = outcome("rlboost", config, count, seed=seed)
        found["instances"][str(count)] = {
            "cost_efficiency": [at(own, discount) for discount in discounts],
            "throughput_ratio": own.tokens_per_second / baseline.tokens_per_second,
            "break_even": own.against(baseline)["break_even_discount"],
        }
    return found


def figure(results: dict[str, Any]) -> Drawing:
    drawn, (axes,) = panels(1, height=3.2)
    percent = [100 * discount for discount in results["discounts"]]
    for number, (count, row) in enumerate(results["instances"].items()):
        axes.plot(
            percent, row["cost_efficiency"], color=COLOURS[number], label=f"{count} instances"
        )
        if row["break_even"] is not None:
            axes.plot(100 * row["break_even"], 1.0, "o", color=COLOURS[number], ms=5)
    axes.axhline(1.0, color="grey", lw=0.8, label="co-located")
    axes.axhline(results["colocated_2x"], color="grey", lw=0.8, ls="--", label="on twice the nodes")
    axes.axvline(100 * results["charged_in_the_paper"], color="grey", lw=0.8, ls=":",
                 label="the paper's prices")  # fmt: skip
    axes.set_xlabel("discount on an instance, % of the reserved price")
    axes.set_ylabel("tokens per dollar / co-located")
    axes.legend(fontsize=7)
    return drawn
