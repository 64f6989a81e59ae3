"""Tokens per dollar on the paper's fleet, at the discounts that sellers of preemptible H100s give.

    python -m experiments.spot_discount.prices                # the discounts below
    python -m experiments.spot_discount.prices 0.3 0.6        # others

Simulates nothing: takes the speed-ups of `results.json`. With k instances of a share s of the
reserved devices, a run of r times the speed makes r / (1 + k · s · (1 − discount)) times the tokens
per dollar.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from configs.sim import base
from experiments.plots import FOLDER

# From web pages, read in November 2026; prices change by the hour, and the pages say little of how
# they were found. The last one is of RLBoost's paper.
SELLERS: Final = (
    ("Google Cloud a3", 0.25),
    ("AWS p5, least", 0.36),
    ("AWS p5, most", 0.50),
    ("RunPod", 0.70),
    ("the paper", 0.746),
)


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "spot_discount" / "results.json").read_text())
    return found


def tokens_per_dollar(found: Mapping[str, Any], count: int, discount: float) -> float:
    """Tokens per dollar with `count` instances that stay, over the co-located baseline's."""
    config = base.get_config()
    share = config.engine.chips / (config.reserved.nodes * config.reserved.chips_per_node)
    speedup: float = found["instances"][str(count)]["throughput_ratio"]
    return speedup / (1 + count * share * (1 - discount))


def table(discounts: Sequence[tuple[str, float]]) -> list[str]:
    """A line for each discount with its name, a column for each size of the fleet."""
    found = results()
    counts = [int(count) for count in found["instances"]]
    width = max(len(name) for name, _ in discounts)
    lines = [f"{'':<{width}}  discount" + "".join(f"{count:>3} instances" for count in counts)]
    for name, discount in discounts:
        row = "".join(f"{tokens_per_dollar(found, count, discount):>13.2f}" for count in counts)
        lines.append(f"{name:<{width}}{discount:>10.0%}{row}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("discounts", nargs="*", type=float, metavar="DISCOUNT", help="0 to 1")
    given = parser.parse_args().discounts
    print("\n".join(table([("yours", each) for each in given] or SELLERS)))


if __name__ == "__main__":
    main()
