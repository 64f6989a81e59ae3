"""Our policies against RLBoost's as published and against a bound, on a market, over seeds.

    python -m experiments.policies.compare --trace=aws-p3.csv --seeds 10 11 12 --hours=1.2

Without a trace the market is the synthetic one of `configs/sim/base.py`. Every seed draws other
lengths and keeps other machines of the trace, or draws another market.
"""

import argparse
import json
from typing import Any

from experiments.plots import FOLDER, save
from experiments.policies.experiment import LENGTHS, figure, one, ratios
from experiments.simulated import SEEDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trace", default="", help="CSV of an availability trace")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--hours", type=float, default=1.2)
    parser.add_argument("--lengths", nargs="*", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--name", default="results", help="of the file; a figure is of results")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    for name in chosen.lengths:
        runs = []
        for seed in chosen.seeds:
            runs.append(one(name, seed, trace=chosen.trace, hours=chosen.hours))
            print(name, seed, json.dumps(runs[-1]), flush=True)
        results[name] = ratios(runs)
    if chosen.name == "results":
        save("policies", results, figure(results))
    else:
        path = FOLDER / "policies" / f"{chosen.name}.json"
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
