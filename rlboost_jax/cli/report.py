"""Draw `report.html` from the files of a run: rlboost report --workdir=RUN"""

import sys

from rlboost_jax.observe.html_report import write_report
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError


def main() -> int:
    parser = command_parser.parser("report", __doc__)
    parser.add_argument("--workdir", required=True, help="folder of a run, finished or not")
    arguments = parser.parse_args()
    try:
        print(write_report(arguments.workdir))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main())
