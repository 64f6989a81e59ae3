"""Print what a server needs to join a run, in one word, for the variable RLBOOST_JOIN.

    export RLBOOST_JOIN=$(rlboost join --workdir=RUN)

For containers and machines that get no folder. The word holds a token and a key, as RUN/join does:
hand it over as a secret, and put it on no command line, which others can read.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlboost_jax.platform import command_parser
from rlboost_jax.trust.credentials import packed


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("join", __doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="folder of a run")
    folder = parser.parse_args(argv).workdir / "join"
    try:
        print(packed(folder))
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        print(f"error: {reason}; a run makes {folder} as it first starts", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
