"""Fit the chance of a draft to be right, by the position in training, from a run's records.

An engine records how many tokens it sampled and drafted in a step of the run, how many drafts were
right and how many decode steps that saved. Every token that was no right draft took a step of its
sequence, so that drafted / (tokens - accepted) drafts go with a token. Of d drafts, each right with
the chance p, p + … + pᵈ are accepted (Leviathan et al. 2023, arXiv:2211.17192, equation 1), solved
for p. With n sequences in a decode step, accepted / saved = n.

Decode steps without drafts are taken for steps with drafts, as no record tells them apart, so p is
too low where an engine paused for long. By response length and place in the group nothing is
recorded.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rlboost_jax.simulator.calibration.observed import MOST_DRAFTS, EngineUsage, ObservedStep

PARTS: Final = 8  # of a run, at most, each with an acceptance of its own
_HALVINGS: Final = 50


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What engines drafted in some steps of a run.

    Attributes:
        acceptance: chance of a draft to be the token that is sampled.
        sequences: in a decode step, on average.
        width: drafts of a sequence in a decode step, on average.
    """

    acceptance: float
    sequences: float
    width: float

    @property
    def rows(self) -> int:
        """Rows of a decode step that held a sequence's token or a draft."""
        return round(self.sequences * (1 + self.width))


def drafting(work: Iterable[EngineUsage]) -> Drafting | None:
    """Fit one acceptance to the work of engines; None where nothing was drafted."""
    drafted = accepted = saved = tokens = 0.0
    for each in work:
        if each.drafted:
            drafted, accepted = drafted + each.drafted, accepted + each.drafts_accepted
            saved, tokens = saved + each.steps_saved, tokens + each.tokens
    if not drafted:
        return None
    sequences = max(1.0, accepted / saved) if saved else 1.0
    sequence_steps = max(tokens - accepted, drafted / MOST_DRAFTS)
    width = drafted / sequence_steps
    acceptance = _acceptance(width, accepted / sequence_steps)
    return Drafting(acceptance=acceptance, sequences=sequences, width=width)


def by_position(steps: Sequence[ObservedStep]) -> list[tuple[int, float]]:
    """First step and acceptance of each part of the run in which anything was drafted."""
    size = math.ceil(len(steps) / PARTS)
    parts = [steps[first : first + size] for first in range(0, len(steps), size)]
    found = [(part[0].step, drafting(w for step in part for w in step.work)) for part in parts]
    return [(step, fit.acceptance) for step, fit in found if fit is not None]


def _acceptance(width: float, accepted: float) -> float:
    """The p for which `width` drafts, the last perhaps a share of one, yield so many accepted."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _expected(middle, width) < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _expected(p: float, width: float) -> float:
    whole = int(width)
    return math.fsum(p**n for n in range(1, whole + 1)) + (width - whole) * p ** (whole + 1)
