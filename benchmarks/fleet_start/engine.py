"""The engine of a benchmark's servers: a clock that says when it has given its first token."""

from collections.abc import Callable
from typing import Any

from benchmarks.stand_in import FINGERPRINT, Dispatch, StandIn, StandInEngine
from rlboost_jax.engine.drafts import DraftTexts
from rlboost_jax.settings.run_config import RunConfig

RATE = 4_000.0  # tokens per second


def clock_of(run: RunConfig) -> StandIn:
    """Make the clock that samples the responses of this run."""
    return StandIn(
        rate=RATE,
        slots=run.engine.slots,
        steps=run.engine.steps_per_dispatch,
        samples=run.learner.prompts_per_step * run.algorithm.group_size,
        mean=run.sampling.max_response_tokens / 4,
        longest=run.sampling.max_response_tokens,
    )


class NotedEngine(StandInEngine):
    """Stand-in engine with what a server announces of its engine."""

    device_kind, fingerprint, cache_tokens = "clock", FINGERPRINT, 0

    def __init__(self, settings: StandIn, slot_tokens: int, note: Callable[[str], None]) -> None:
        super().__init__(settings)
        self.slots, self.slot_tokens = settings.slots, slot_tokens
        self.texts = DraftTexts((), 0)  # it makes no drafts
        self._note, self._noted = note, False

    def load(self, params: Any, version: int) -> None:
        if self.version is None:
            self._note("weights")
        super().load(params, version)

    def finish(self) -> Dispatch:
        found = super().finish()
        if not self._noted and len(found.tokens):
            self._noted = True
            self._note("token")
        return found


def engine_of_run(run: RunConfig, note: Callable[[str], None]) -> NotedEngine:
    return NotedEngine(clock_of(run), run.slot_tokens, note)
