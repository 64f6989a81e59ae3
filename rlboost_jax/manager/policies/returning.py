"""Whether an answered response goes back to the server that has its pages: pure functions.

While an environment thinks, a response has no slot; its keys and values stay in free pages of the
engine that it left, until those pages are needed. Engines use the pages first that have been free
for longest (`rlboost_jax.engine.pages`). So what was free as a response left is used up before its
own: how much has been taken since tells whether they are there.

To go back saves their prefill, which holds up whatever else runs where it is done. It costs the
wait for a slot there, if another engine has one free now. Turns are short, so slots come free
often: with 64 slots and turns of 50 tokens every engine has one free at nearly every step. Where
nobody has a free slot it waits in any case, and may as well wait there.
"""

import math
from dataclasses import dataclass

# Tokens that are prefilled in the time in which a full engine samples one, where nobody has
# measured it: prefill does not read the weights for each of them.
PREFILLED: float = 8.0
# Prefill holds up all that runs at an engine, and a wait one slot: a second of it is worth as many
# of waiting. With 64 (slots) nothing would ever move, and engines that many came from stay crowded;
# 4 to 16 spare as much (`python -m benchmarks.turned`).
HOLDS_UP: float = 4.0
NEWEST = 0.1  # weight of the last value in a mean of late


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The instance that a response came from.

    Attributes:
        slots: rollouts that it runs at once.
        held: rollouts that it has; what is beyond its slots waits there.
        most_held: that it may have; more than other work may, since what came back to its pages
            has nowhere better to wait.
        slot_seconds: from one slot that comes free there to the next; inf: not known.
    """

    slots: int
    held: int
    most_held: int
    slot_seconds: float = math.inf


def newer(known: float, found: float) -> float:
    """Update a running mean with a new value; the first value is taken as it is."""
    return found if math.isinf(known) else known + NEWEST * (found - known)


def still_there(tokens: int, *, free: float, taken: float) -> int:
    """Number of a response's tokens whose pages its engine probably still has.

    Args:
        tokens: that it had there.
        free: tokens that the engine had free pages for besides, as it left.
        taken: tokens that the engine has taken pages for since.
    """
    return tokens if taken <= free else 0


def goes_back(saved: int, home: Home, *, elsewhere: bool, prefill_seconds: float) -> bool:
    """Whether to place a response now where its pages are.

    Args:
        saved: tokens that need no prefill there.
        elsewhere: another instance has a free slot.
        prefill_seconds: of a token, elsewhere; inf: not known.
    """
    if not saved or home.held >= home.most_held:
        return False
    if home.held < home.slots or not elsewhere:
        return True
    ahead = home.held - home.slots + 1
    return ahead * home.slot_seconds < HOLDS_UP * saved * prefill_seconds < math.inf
