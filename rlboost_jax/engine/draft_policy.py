"""When steps carry drafts, and how many tokens they may yield.

Decided for each dispatch from what earlier ones with drafts yielded, so without a clock. A dispatch
with drafts takes as many rows as one without, but the next one cannot be launched before it is read
(`Scheduler.follow`), and it matches texts in every step. So drafts are left out while they gain
little, and tried again after a pause, which doubles as long as they go on gaining little.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlboost_jax.engine.drafts import MOST_DRAFTS

LEAST_GAIN: Final = 1.1  # tokens of a sequence in a step, from which on drafts are worth it
MOST_TOKENS_A_STEP: Final = 4  # of a sequence, on average over the steps of a dispatch
_FREE_ROWS: Final = 0.5  # for each sequence, at least
_LONGEST_PAUSE: Final = 16  # dispatches
_KEPT: Final = 0.5  # of the weight of earlier dispatches in the mean gain, with each new one


@dataclass(frozen=True)
class SpeculationCounts:
    """Sums over decode steps with drafts. `tokens / sequence_steps` is 1 where none was right.

    Attributes:
        steps: of any number of sequences.
        sequence_steps: steps, summed over the sequences that were sampled in each.
        drafted: drafts that were verified.
        tokens: that were sampled.
    """

    steps: int = 0
    sequence_steps: int = 0
    drafted: int = 0
    tokens: int = 0

    @property
    def accepted(self) -> int:
        return self.tokens - self.sequence_steps

    @property
    def steps_saved(self) -> float:
        """Steps that the same tokens would have taken besides, one a sequence in each."""
        return self.accepted * self.steps / self.sequence_steps if self.sequence_steps else 0.0

    def __add__(self, other: "SpeculationCounts") -> "SpeculationCounts":
        return SpeculationCounts(
            steps=self.steps + other.steps,
            sequence_steps=self.sequence_steps + other.sequence_steps,
            drafted=self.drafted + other.drafted,
            tokens=self.tokens + other.tokens,
        )


class DraftPolicy:
    """Decides for one engine.

    Attributes:
        counts: of all dispatches with drafts.
    """

    def __init__(self, rows_for: Callable[[int], int], enabled: bool) -> None:
        """
        Args:
            rows_for: rows of a decode step of so many sequences.
            enabled: whether there are drafts at all.
        """
        self._rows_for, self._enabled = rows_for, enabled
        self.counts = SpeculationCounts()
        self._tokens = self._steps = 0.0  # of sequences, the newest dispatches counting most
        self._left, self._pause = 0, 1  # dispatches without drafts: still to come, next time

    def wants(self, num_sequences: int) -> bool:
        """Whether the next decode steps, of so many sequences, are to carry drafts."""
        if self._left or not (self._enabled and num_sequences):
            return False
        free = self._rows_for(num_sequences) - num_sequences
        return free >= _FREE_ROWS * num_sequences

    def passed(self) -> None:
        """A dispatch was launched without drafts."""
        self._left = max(0, self._left - 1)

    def most_tokens(self, num_steps: int) -> int:
        """Most tokens that a sequence may yield in so many steps with drafts.

        Somewhat more than it will: pages are reserved for them.
        """
        gain = min(1.5 * self._gain, MOST_TOKENS_A_STEP) if self._steps else MOST_TOKENS_A_STEP
        return max(round(num_steps * gain), MOST_DRAFTS + 1)

    def likely_tokens(self, num_steps: int) -> int:
        """Tokens that a sequence yields in so many steps with drafts, as in the last dispatches."""
        return round(num_steps * (self._gain if self._steps else 1))

    def verified(self, counts: SpeculationCounts) -> None:
        """Take in what a dispatch with drafts has yielded."""
        self.counts += counts
        if not counts.sequence_steps:
            return
        self._tokens = _KEPT * self._tokens + counts.tokens
        self._steps = _KEPT * self._steps + counts.sequence_steps
        if self._gain >= LEAST_GAIN:
            self._pause = 1
        else:
            self._left, self._tokens, self._steps = self._pause, 0.0, 0.0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    @property
    def _gain(self) -> float:
        """Tokens of a sequence in a step; of no meaning before the first."""
        return self._tokens / max(self._steps, 1.0)
