"""Draw `report.html` from the files of a run: rlboost report --workdir=RUN"""

import sys

from rlboost_jax import usage
from rlboost_jax.observe.report import write_report
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.supervision import exits


def main() -> int:
    parser = usage.parser("report", __doc__)
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
