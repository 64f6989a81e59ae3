"""Work of engines in a step, for `events.jsonl`: the numbers that calibration fits speeds to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


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

    def values(self) -> dict[str, Any]:
        return asdict(self)
