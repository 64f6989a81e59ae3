"""What is asked of a trial and what came of it.

That crosses a process boundary and lies on disk: JSON only, decoded into these records or refused.
"""

from typing import Any, Final, Literal

import msgspec

# Names that a problem may have. Its module is in `known_problems.py`.
ProblemName = Literal["engine_attention", "learner_attention", "learner_experts"]

# right         agrees with the reference and, where asked, repeats its bits
# wrong         differs by more than the tolerance
# dependent     a row's bits change with its companions, or from call to call
# unavailable   says itself that it cannot run these shapes here
# raised        to compile or to run it failed with an exception
# crashed       its process ended
# hung          its process had to be ended
Outcome = Literal["right", "wrong", "dependent", "unavailable", "raised", "crashed", "hung"]

MAX_REASON: Final = 300  # letters


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order for a child process: what to try."""

    problem: str
    shape: dict[str, Any]  # the problem's own record
    invariant: bool  # whether bits must be those of the case in all its variants
    candidates: tuple[str, ...]  # in this order
    seconds: float  # in which each must be done
    on_cpu: bool = False  # whether to try them where the child finds no accelerator


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of one candidate."""

    candidate: str
    outcome: Outcome
    reason: str = ""  # why it is passed over; "" if it is right
    seconds: float | None = None  # of the calls it is chosen by, if it is right
    error: float | None = None  # largest relative error of a row, where it ran and was finite


class KernelVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trials of one problem on one kind of device."""

    platform: str  # of the device, as JAX names it; "" where none could be asked
    device: str  # its kind
    trials: tuple[Trial, ...]


class TrialLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that a child writes; one field of it is set."""

    device: tuple[str, str] | None = None  # platform and kind, before anything else
    trying: str | None = None  # a candidate, before it is touched
    trial: Trial | None = None


def one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]
