"""`python -m rlboost_jax COMMAND`: the program `rlboost`, where its script is not on the path."""

import sys

from rlboost_jax.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
