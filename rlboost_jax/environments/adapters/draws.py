"""Random state of the process for each episode that draws from it.

Games that call `random.random()` share one generator with all that runs in their process. Within
`of` they find the state they left, whatever has been drawn since, and one at a time does.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_ONE_AT_A_TIME: Final = threading.RLock()


class OwnDraws:
    """State of `random`, and of numpy's generator if that is loaded, for one episode."""

    def __init__(self, seed: int) -> None:
        self._state: Any = None
        self._seed = seed

    @contextmanager
    def used(self) -> Iterator[None]:
        """Draw from this state within the context; afterwards the process has its own again."""
        import numpy as np

        with _ONE_AT_A_TIME:
            before = random.getstate(), np.random.get_state()
            if self._state is None:
                random.seed(self._seed)
                np.random.seed(self._seed % 2**32)
            else:
                random.setstate(self._state[0])
                np.random.set_state(self._state[1])
            try:
                yield
            finally:
                self._state = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
