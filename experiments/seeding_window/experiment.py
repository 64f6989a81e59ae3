"""What do the seeding window and its memory bring while instances go and come back?"""

from collections.abc import Sequence
from typing import Any

from experiments.plots import COLOURS, Drawing, panels
from experiments.simulated import SEEDS, config_of, interval
from rlboost_jax.simulator.market.simulated_market import MachineChange, Market
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.systems import rows_of

SYSTEMS = {"rlboost": "window with memory", "no_memory": "no memory", "no_seeding": "no window"}
HOUR = 3600.0


def loss_and_return(apart: float) -> tuple[Market, float]:
    """Six instances come one by one; five go at once, and come back one by one.

    Args:
        apart: seconds between two arrivals; also from the last of them to what follows.

    Returns:
        the market, and the second at which the five go.
    """
    gone = 6 * apart
    changes = [MachineChange(apart * i, True, f"machine{i}") for i in range(6)]
    changes += [MachineChange(gone, False, f"machine{i}") for i in range(1, 6)]
    changes += [MachineChange(gone + apart * i, True, f"back{i}") for i in range(1, 6)]
    market = Market(name="loss", instances=None, seconds=2 * gone, changes=tuple(changes))
    return market, gone


def measure(
    *, hours_apart: float = 0.5, seeds: Sequence[int] = SEEDS, small: bool = False
) -> dict[str, Any]:
    """Tokens/s from the loss on, over that of the window with memory; and the first seed's steps.

    Args:
        hours_apart: between two arrivals; half an hour is that of the artifact's guide.
    """
    config = config_of("14b", small=small)
    market, gone = loss_and_return(hours_apart * (180.0 if small else HOUR))
    found: dict[str, Any] = {"gone_hours": gone / HOUR, "ratio": {}, "steps": {}}
    rates: dict[str, list[float]] = {}
    for system in SYSTEMS:
        for seed in seeds:
            used, rows = rows_of(system, config, market, seed=seed)
            assert rows is not None
            after = [row for row in rows if row["begun_at"] + row["step_seconds"] > gone]
            rates.setdefault(system, []).append(Outcome(used, after, settling=0).tokens_per_second)
            if seed == seeds[0]:
                found["steps"][system] = [
                    {
                        "hours": row["begun_at"] / HOUR,
                        "tokens_per_second": row["response_tokens"] / row["step_seconds"],
                        "window_seconds": row["seeding_window_seconds"],
                        "instances": row["instances_mean"],
                    }
                    for row in rows
                ]
    for system, values in rates.items():
        pairs = zip(values, rates["rlboost"], strict=True)
        found["ratio"][system] = interval([one / other for one, other in pairs])
    return found


def figure(results: dict[str, Any]) -> Drawing:
    drawn, axes = panels(3)
    for number, (system, label) in enumerate(SYSTEMS.items()):
        steps = results["steps"][system]
        hours = [row["hours"] for row in steps]
        colour = COLOURS[number]
        axes[0].plot(hours, [row["tokens_per_second"] for row in steps], color=colour, label=label)
        axes[1].plot(hours, [row["window_seconds"] for row in steps], color=colour)
    steps = results["steps"]["rlboost"]
    axes[2].step([r["hours"] for r in steps], [r["instances"] for r in steps], color="grey")
    for panel, name in zip(
        axes, ("tokens/s", "seeding window, s", "instances ready, mean of a step"), strict=True
    ):
        panel.axvline(results["gone_hours"], color="grey", lw=0.8, ls=":")
        panel.set_ylabel(name)
        panel.set_xlabel("hours")
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    return drawn
