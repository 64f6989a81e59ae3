"""A trainer that waits for its fleet counts as alive while the fleet generates, however slowly."""

from collections.abc import Callable

from rlboost_jax.messages import FleetStatus
from rlboost_jax.supervision.pulse import PULSE


class FleetPulse:
    """To be called whenever a wait is over, with or without a message.

    Args:
        status: the newest of the fleet.
    """

    def __init__(self, status: Callable[[], FleetStatus | None]) -> None:
        self._status = status
        self._seen: object = None

    def __call__(self, message: object = None) -> None:
        seen = _tokens(self._status())
        if message is not None or seen != self._seen:
            PULSE.beat()
        self._seen = seen


def _tokens(status: FleetStatus | None) -> object:
    """What grows as somebody generates; servers come and go in it as well."""
    if status is None:
        return None
    return status.finished, tuple((one.instance, one.tokens) for one in status.instances)
