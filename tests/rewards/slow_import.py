"""A module of a user's whose import may stand still: see `REWARDS_IMPORT`."""

import os
import time
from pathlib import Path

from tests.rewards.functions_for_tests import good as good

_FOLDER = Path(os.environ["REWARDS_IMPORT"])
if (_FOLDER / "slow").exists():
    (_FOLDER / "importing").touch()
    time.sleep(3600)
