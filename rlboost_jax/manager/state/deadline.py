"""By when a server has to show that it is of use."""

from typing import Final, NamedTuple

# A pull that hears nothing says so after 63 s; what has come is read and put on the device in
# silence.
LOADING_SECONDS: Final = 120.0
LOADING_TIMES: Final = 10  # `manager.progress_seconds`, if that is more


class Deadline(NamedTuple):
    """When a server counts as lost if nothing changes, and why.

    Attributes:
        stuck: it would be so again, if it dialled again.
    """

    at: float
    reason: str
    stuck: bool


def loaded_by(progress_at: float, progress_seconds: float, line: float) -> Deadline:
    """Of one that is to load weights: the next byte of them.

    Args:
        progress_at: see `Parameters`; inf: it owes none.
        line: seconds that its line may hold up what it says.
    """
    seconds = max(LOADING_TIMES * progress_seconds, LOADING_SECONDS) + line
    return Deadline(progress_at + seconds, f"no byte of weights for {seconds:.3g} s", stuck=True)
