"""`python -m rlboost_jax.rollout --manager=HOST:PORT --join=FOLDER`: serve rollouts to a run."""

import os
import sys

from rlboost_jax.rollout.server import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The engine's thread may be in the middle of a dispatch whose tokens nobody will have:
    # neither wait for it nor take the backend down under it.
    os._exit(code)
