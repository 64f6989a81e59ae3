"""Bring back a run from its copies in an object store (`checkpoint.copy_to`).

    rlboost restore s3://BUCKET/PREFIX --workdir=RUN [--step=STEP]

The folder then has the run as of the newest copy, or of STEP; the command that trained it goes on
from there. Each file is checked by its SHA-256 as it arrives. Exit status: 0, or 2 with a line.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlboost_jax.learner.checkpoints.run_copies import restore
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.object_store import ObjectStore


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("restore", __doc__)
    parser.add_argument("store", help="address of the copies, as checkpoint.copy_to had it")
    parser.add_argument("--workdir", type=Path, required=True, help="a new folder")
    parser.add_argument("--step", type=int, help="of the copy; the newest if not given")
    chosen = parser.parse_args(argv)
    try:
        store = ObjectStore(chosen.store, setting="restore:")
        step = restore(store, chosen.workdir.absolute(), chosen.step)
    except Mistake as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.MISTAKE
    print(f"{chosen.workdir} has the run as of step {step}; start it as before to go on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
