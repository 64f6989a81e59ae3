"""Its worker is asked to end in the midst of each fork."""

import os
import signal

from tests.rewards.functions_for_tests import hangs_with_children

__all__ = ["hangs_with_children"]

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
