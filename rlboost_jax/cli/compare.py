"""Compare runs: their weights step by step, what differs, curves and costs.

    rlboost compare runs/calm runs/fire
    rlboost compare runs/calm runs/fire --page=compare.html --picture=compare.svg

The first run is what the others are compared with. Runs may still go on, be resumed or forked, and
have unlike numbers of steps. Ends with code 0 where all weights of common steps are equal, else
with 1.
"""

import sys
from pathlib import Path

from rlboost_jax.observe.comparing.compared_page import comparison_page
from rlboost_jax.observe.comparing.compared_run import compared_runs
from rlboost_jax.observe.comparing.divergence import divergence_of
from rlboost_jax.observe.comparing.promise_picture import picture
from rlboost_jax.observe.comparing.side_by_side import text_lines
from rlboost_jax.platform import command_parser, durable, exits
from rlboost_jax.platform.mistakes import ConfigError


def main(arguments: list[str] | None = None) -> int:
    parser = command_parser.parser("compare", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--page", type=Path, help="file for the comparison as a page")
    parser.add_argument("--picture", type=Path, help="file for its first figure, an SVG")
    parser.add_argument("--every_step", action="store_true", help="show the digest of each step")
    given = parser.parse_args(arguments)
    if len(given.runs) < 2:
        parser.error("one run alone cannot be compared; name two or more")
    try:
        runs = compared_runs(given.runs)
        for line in text_lines(runs, every_step=given.every_step):
            print(line)
        if given.page:
            durable.write(given.page, comparison_page(runs).encode("utf-8", "replace"))
            print(f"page: {given.page}")
        if given.picture:
            durable.write(given.picture, picture(runs).encode("utf-8", "replace"))
            print(f"picture: {given.picture}")
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.MISTAKE
    first, *others = runs
    return 0 if all(divergence_of(first, other).equal for other in others) else exits.BROKEN


if __name__ == "__main__":
    sys.exit(main())
