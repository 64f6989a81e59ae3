"""Time the server may use the device before a tenant's token would be late. Decisions only.

A program that is launched runs to its end. So before each one it is asked: if the device is ours
for so long and the tenant's from then on, is any of its tokens late? The tenant says when the next
token of each of its requests is due, and how long it needs the device until it has it, all that
comes before included; that is the whole of what is known of its engine.

Future requests are unknown. They find the tenant's queue as we leave it: so first tokens are taken
to be due when a part of their time is still left (`RESERVE`), which a burst of arrivals then has.
Later tokens keep a small reserve for a clock, a wake-up and a program that takes longer than usual
(`MARGIN`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rlboost_jax.engine.costs import Costs
from rlboost_jax.engine.program_plans import ProgramAllowance
from rlboost_jax.engine.shared import Wants

RESERVE: Final = 0.5  # of the time to a first token
MARGIN: Final = 0.1  # of the time to a later one


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Latencies that a tenant promises to its clients."""

    first_token_seconds: float
    token_seconds: float  # from one token to the next


@dataclass(frozen=True, kw_only=True)
class Due:
    """The next token of one of the tenant's requests."""

    at: float  # seconds, on the clock of `now`
    needs: (
        float  # seconds that the device is the tenant's before, all else that comes first included
    )
    first: bool  # of its response


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the server's programs."""

    max_steps: int
    decode_rows: tuple[int, ...]  # ascending
    token_rows: int


def slack(latencies: Latencies, dues: Sequence[Due], now: float) -> float:
    """Seconds for which the server may use the device from now on.

    inf: the tenant has nothing to do; below 0: something is late already.
    """
    first = RESERVE * latencies.first_token_seconds
    later = MARGIN * latencies.token_seconds
    return min(
        (due.at - (first if due.first else later) - due.needs - now for due in dues),
        default=math.inf,
    )


def most_idle(latencies: Latencies) -> float:
    """Seconds a program may take while the tenant has nothing to do.

    A request that arrives the moment after waits for its end.
    """
    return RESERVE * latencies.first_token_seconds


def allowance(seconds: float, wants: Wants, costs: Costs, shape: Shape) -> ProgramAllowance | None:
    """The program that gets most done in `seconds`; None: none is that short.

    Prefill if there is time for it, as the engine would have it; as many decode steps of all as
    there is time for, else one of the oldest.
    """
    prefills = bool(wants.prefill_tokens) and costs.mixed <= seconds
    fitting = [size for size in shape.decode_rows if costs.step(size) <= seconds]
    if not prefills and not (wants.ready and fitting):
        return None
    size = min(fitting, default=shape.decode_rows[0])
    if fitting:  # the smallest program that has a row for each, or the largest that is so short
        size = next((size for size in fitting if size >= wants.ready), fitting[-1])
    step = costs.step(size)
    steps = shape.max_steps if step * shape.max_steps <= seconds else math.floor(seconds / step)
    return ProgramAllowance(
        steps=max(1, steps), rows=size, prefill_tokens=shape.token_rows if prefills else 0
    )
