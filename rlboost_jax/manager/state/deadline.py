"""Deadline by which a server must show progress."""

from typing import Final, NamedTuple

# A pull that hears nothing says so after 63 s; what has come is read and put on the device in
# silence.
LOADING_SECONDS: Final = 120.0
LOADING_TIMES: Final = 10  # `manager.progress_seconds`, if that is more


class Deadline(NamedTuple):
    """Time at which a server counts as lost if nothing changes, and the reason.

    Attributes:
        stuck: whether it would be in the same state after reconnecting.
    """

    at: float
    reason: str
    stuck: bool


def loaded_by(progress_at: float, progress_seconds: float, line: float) -> Deadline:
    """Deadline for the next byte of weights of a server that is to load some.

    Args:
        progress_at: see `Parameters`; inf: it owes none.
        line: seconds that its line may hold up what it says.
    """
    seconds = max(LOADING_TIMES * progress_seconds, LOADING_SECONDS) + line
    return Deadline(progress_at + seconds, f"no byte of weights for {seconds:.3g} s", stuck=True)
