"""Does a plan of one observed run forecast runs with other fleets? Against real processes.

    python -m benchmarks.loop --instances=2,1,3 --fleets=calm --steps=16 --keep=runs/loop
    python -m experiments.plan.real runs/loop/calm_2 1=runs/loop/calm_1 3=runs/loop/calm_3

Manager, streams and servers are real there, engines and learner are clocks. Prints seconds of a
step, forecast from the first run's events alone and measured.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from configs.sim import base
from rlboost_jax.simulator.calibration.observed import observed
from rlboost_jax.simulator.plan.mix_run import horizon_of, run_mix
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.price_list import InstanceType, PriceList
from rlboost_jax.simulator.plan.purchase import purchase_of
from rlboost_jax.simulator.plan.workload import of_workdir
from rlboost_jax.simulator.sim_config_loading import sim_config, to_dict

SETTLING: Final = 5
SEEDS: Final = 2


def compare(seen: str | Path, others: dict[int, Path]) -> list[dict[str, Any]]:
    """A row per fleet, the one that was seen first."""
    asked = of_workdir(seen, to_dict(sim_config(base.get_config())), settling=SETTLING)
    spot = InstanceType(name="spot", price_per_hour=1.0, speed=1.0, max_instances=8)
    purchase = purchase_of(asked.config, PriceList(instances=(spot,)), measured=True)
    found = []
    own = round(statistics.fmean(s.instances_mean for s in observed(seen, settling=5).steps))
    for count, folder in {own: Path(seen), **others}.items():
        steps = observed(folder, settling=SETTLING).steps
        horizon = horizon_of(
            run_steps=10**6, steps=SETTLING + 4, settling=SETTLING, seeds=range(SEEDS)
        )
        samples = [run_mix(purchase, Mix((count,)), horizon, seed=s) for s in horizon.seeds]
        forecast = statistics.fmean(s.seconds for s in samples) / horizon.run_steps
        measured = statistics.fmean(step.seconds for step in steps)
        print(count, forecast, measured, flush=True)
        found.append(
            {"instances": count, "forecast": forecast, "measured": measured,
             "ratio": forecast / measured}
        )  # fmt: skip
    return found


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    named = {int(each.split("=")[0]): Path(each.split("=", 1)[1]) for each in rest}
    rows = compare(first, named)
    (Path(__file__).parent / "real.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)
