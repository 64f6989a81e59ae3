"""Progress signs of a trainer that waits for its fleet, which generates or scores."""

from collections.abc import Callable

from rlboost_jax.messages import FleetStatus
from rlboost_jax.platform.pulse import PULSE


class FleetPulse:
    """Pulse to be called after every wait, with or without a message.

    Args:
        status: the newest of the fleet.
        unscored: how many questions about teachers are open.
    """

    def __init__(
        self,
        status: Callable[[], FleetStatus | None],
        unscored: Callable[[], int] = lambda: 0,
    ) -> None:
        self._status, self._unscored = status, unscored
        self._seen: object = None

    def __call__(self, message: object = None) -> None:
        seen = _tokens(self._status()), self._unscored()
        if message is not None or seen != self._seen:
            PULSE.beat()
        self._seen = seen


def _tokens(status: FleetStatus | None) -> object:
    """A value that changes as servers generate, come or go."""
    if status is None:
        return None
    return status.finished, tuple((one.instance, one.tokens) for one in status.instances)
