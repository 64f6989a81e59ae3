"""Whether a trainer gets on, from signs of it that a supervisor looks at now and then.

How long it may show none while it computes is learnt from its own steps: ten times the longest
silence so far and never less than `LEAST_SECONDS`, from the third step of a start on. Before that,
and wherever it waits for others or does something once, two hours: compiling, reading parameters
and warming up take as long as they take.

Time counts as it is seen. A supervisor that was stopped itself, with its host asleep or its
container paused, sees that the clock has moved and cannot know whether the trainer could have; so
of the time between two looks at most `MOST_SECONDS` count. All times are of a clock that nobody
sets.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from rlboost_jax.platform.pulse import ORDERS, Sign

LEARNT: Final = frozenset(  # in which a trainer computes and waits for nobody
    {"micro-batch", "check", "update", "copy parameters", "train", "finish", "digest"}
)
LEAST_SECONDS: Final = 300.0  # a disk that does not answer for a minute or two is none of ours
UNKNOWN_SECONDS: Final = 7200.0
TIMES: Final = 10.0  # the longest silence so far
STEPS: Final = 3  # of a start, after which its programs are there
MOST_SECONDS: Final = 10.0  # that count between two looks
STOPPED: Final = "stopped by a signal"  # the phase of one that may not run


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Observed silences of a trainer, and of the run's trainers before it."""

    sign: Sign = field(default_factory=Sign)
    still: float = 0.0  # seconds for which it has shown no other
    stopped: bool = False  # it may not run
    longest: float = 0.0  # silence in one of `LEARNT`, seconds

    @property
    def phase(self) -> str:
        return STOPPED if self.stopped else self.sign.phase

    def of_next_start(self) -> "Patience":
        """Patience with the next trainer, which is no slower."""
        return Patience(longest=self.longest)


def after_look(patience: Patience, sign: Sign, seconds: float, *, stopped: bool) -> Patience:
    """Update the patience after one more look.

    Args:
        seconds: since the last.
        stopped: the system says that it may not run now.
    """
    still = patience.still + min(seconds, MOST_SECONDS)
    if sign.count == patience.sign.count:
        still = 0.0 if patience.stopped and not stopped else still  # it could not, and now can
        return replace(patience, still=still, stopped=stopped)
    longest = patience.longest
    if patience.phase in LEARNT and patience.sign.steps:  # the first step compiles on its way
        longest = max(longest, still)
    return Patience(sign=sign, stopped=stopped, longest=longest)


def bound_seconds(patience: Patience, given: float | None) -> float | None:
    """Longest time that the trainer may show no sign; None: no limit.

    Args:
        given: by a person, for all phases; None: to be learnt; 0: for ever.
    """
    if given == 0 or patience.phase == ORDERS:  # process 0 has a supervisor of its own
        return None
    if given is not None:
        return given
    learnt = TIMES * patience.longest
    if patience.phase in LEARNT and patience.sign.steps >= STEPS:
        return max(learnt, LEAST_SECONDS)
    return max(learnt, UNKNOWN_SECONDS)
