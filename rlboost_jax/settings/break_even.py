"""The price up to which preemptible instances pay, for runs that were simulated.

With k instances a run makes r times the tokens per hour that its reserved devices make alone, which
cost R dollars an hour. Tokens per dollar are the same where r · R = R + k · p: an instance is
worth p = (r − 1) · R / k dollars an hour. It has a share s of the reserved devices' number, which
cost s · R, so p is a discount of 1 − (r − 1) / (k · s), whatever R is.
"""

import math

from rlboost_jax.configs.sim.h100_speedups import SPEEDUPS
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.run_config import RunConfig


def worth(speedup: float, count: int) -> float:
    """Value of each of `count` instances, as a fraction of the price of all reserved devices."""
    return (speedup - 1) / count


def discount(speedup: float, count: int, share: float) -> float:
    """The discount at which so many instances begin to pay; below 0 where they pay at any price.

    Args:
        share: devices of one instance over the reserved ones.
    """
    return 1 - worth(speedup, count) / share


def speedups_of(config: RunConfig) -> tuple[float, ...]:
    """Simulated speed-ups with 1, 2, … instances; empty where no preset resembles the run."""
    own = {
        "num_params": num_parameters(config.model),
        "lora_rank": config.model.lora.rank,
        "mesh": config.learner.mesh,
        "tensor_parallel": config.engine.tensor_parallel,
        "slots": config.engine.slots,
        "prompts_per_step": config.learner.prompts_per_step,
        "group_size": config.algorithm.group_size,
        "max_response_tokens": config.sampling.max_response_tokens,
        "lag": config.algorithm.lag,
    }
    for preset in SPEEDUPS.values():
        if all(preset[name] == value for name, value in own.items()):
            return tuple(preset["speedups"])
    return ()


def device_share(config: RunConfig) -> float:
    """Devices of one instance, as a fraction of the reserved ones."""
    return config.engine.tensor_parallel / math.prod(config.learner.mesh)


def break_even_text(config: RunConfig) -> str:
    """Say up to which price the run's own fleet pays; "" for a run without instances."""
    fleet, count = config.fleet, config.fleet.most_instances
    if not count:
        return ""
    if fleet.pools:
        return "not known for pools: `rlboost plan` compares them"
    speedups = speedups_of(config)
    if count > len(speedups):
        known = f" (simulated up to {len(speedups)})" if speedups else ""
        return (
            f"not known for this run with {count} instance{'s' * (count > 1)}{known}: ask "
            "`rlboost plan` or, once it has run, `rlboost advise`"
        )
    speedup = speedups[count - 1]
    return (
        f"a fleet of {count} that stays makes {speedup:.2f} times the tokens of the reserved "
        "devices alone (simulated on H100s), and pays "
        + _up_to(
            discount(speedup, count, device_share(config)),
            worth(speedup, count) * fleet.reserved_price_per_hour,
            fleet.price_per_hour,
        )
    )


def _up_to(least: float, most: float, price: float) -> str:
    """Say in which range of prices an instance pays, and whether its own price is in it.

    Args:
        least: discount at which instances begin to pay.
        most: dollars an hour up to which one pays; 0 where the reserved devices have no price.
        price: what one costs.
    """
    if least >= 1:
        return "at no price"
    off = f"{least:.0%} off the reserved price" if least > 0 else "more than reserved devices cost"
    if not most:
        return f"from {off} on"
    verdict = "pays" if price <= most else "does not pay"
    return f"up to ${most:.2f} an hour for each, {off}; ${price:.2f} {verdict}"
