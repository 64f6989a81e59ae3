"""`rlboost rollout --manager=HOST:PORT --join=FOLDER`: serve rollouts to a run."""

import os
import sys

from rlboost_jax.platform.output_relay import finish, speak_through_relay
from rlboost_jax.rollout.server import main

END_SECONDS = 1.0  # for what still waits to be read

if __name__ == "__main__":
    speak_through_relay(END_SECONDS)
    code = main(sys.argv[1:])
    finish()
    # The engine's thread may be in the middle of a dispatch whose tokens nobody will have:
    # neither wait for it nor take the backend down under it.
    os._exit(code)
