"""Work of engines in a step, for `events.jsonl`: the numbers that calibration fits speeds to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rlboost_jax.messages import DraftCounts

_MOST_A_STEP: Final = 8  # tokens of a rollout in one decode step, with drafts


class StepSeconds:
    """Seconds of an engine's decode steps since it joined, its prefill included.

    A dispatch takes as many steps as the most tokens that any rollout got, less those that drafts
    saved.
    """

    __slots__ = ("_saved", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds, self._tokens, self._saved = 0.0, 0, 0

    def dispatched(self, most: int, seconds: float) -> None:
        """Add a dispatch in which no rollout got more tokens than `most`."""
        if most:
            self._seconds, self._tokens = self._seconds + seconds, self._tokens + most

    def save(self, steps: int) -> float:
        """Add steps that drafts saved; returns about how many seconds these would have taken."""
        self._saved += steps
        run = max(self._tokens - self._saved, self._tokens / _MOST_A_STEP)
        return steps * self._seconds / run if run else 0.0


@dataclass(slots=True)
class Usage:
    """Sums over an engine's dispatches.

    Its time is linear in them: seconds are steps at a fixed price each, tokens, tokens of context
    that were read, and tokens prefilled.
    """

    seconds: float = 0.0  # with a dispatch under way
    steps: int = 0  # decode steps: of a dispatch, the most that any rollout got
    tokens: int = 0
    context: float = 0.0  # Σ tokens · mean length of the rollouts held
    prefilled: int = 0  # of what was placed here; a prompt once for a group that shares it
    drafted: int = 0  # tokens that it verified
    drafts_accepted: int = 0
    steps_saved: int = 0  # decode steps, by these

    def dispatched(self, counts: Sequence[int], *, seconds: float, context: float) -> None:
        """Add one dispatch, with the tokens of each rollout."""
        tokens = sum(counts)
        self.seconds += seconds
        self.steps += max(counts, default=0)
        self.tokens += tokens
        self.context += tokens * context

    def prefill(self, tokens: int) -> None:
        """Add a placed rollout that comes with `tokens` to prefill."""
        self.prefilled += tokens

    def draft(self, drafts: DraftCounts) -> None:
        """Add what drafts came to."""
        self.drafted += drafts.drafted
        self.drafts_accepted += drafts.accepted
        self.steps_saved += drafts.steps_saved

    def values(self) -> dict[str, Any]:
        """Return all sums by name; those of drafts only where there were any."""
        left_out = () if self.drafted else ("drafted", "drafts_accepted", "steps_saved")
        return {name: value for name, value in asdict(self).items() if name not in left_out}
