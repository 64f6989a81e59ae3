"""Throughput against batch size, learnt from the token batches of each kind of instance.

Source: RLBoost (NSDI '26), section 4.2: the profile of the previous step gives the batch B
at which throughput levels off. The paper corrects it for the current mean context and does
not say how; here B shrinks as contexts grow, so that B · context, the tokens that each
decode step reads, stays what it was.
"""

from collections.abc import Hashable

PLATEAU = 0.9  # share of the best throughput that counts as levelled off
MIN_SAMPLES = 4  # of a batch size before it is believed
MAX_KINDS = 64  # a kind is what a server says it is: those learnt last are kept


class ThroughputProfile:
    """Samples of two steps: the current one is collected, the last one is queried."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, dict[int, list[float]]] = {}
        self._last: dict[Hashable, tuple[int, float]] = {}  # kind → plateau batch, context

    def add(
        self, kind: Hashable, *, batch: int, tokens: int, seconds: float, context: float
    ) -> None:
        """Record a dispatch: `batch` rollouts of `context` tokens on average yielded `tokens`."""
        if batch < 1 or tokens < 1 or seconds <= 0:
            return
        bucket = 1 << (batch - 1).bit_length()
        if kind not in self._sums and len(self._sums) >= MAX_KINDS:
            return
        sums = self._sums.setdefault(kind, {}).setdefault(bucket, [0.0] * 5)
        for place, value in enumerate((1.0, tokens, seconds, batch, context)):
            sums[place] += value

    def end_step(self) -> None:
        """Make the samples of the step just over the profile."""
        for kind, buckets in self._sums.items():
            known = {b: s for b, s in buckets.items() if s[0] >= MIN_SAMPLES}
            if len(known) < 2:
                continue
            best = max(s[1] / s[2] for s in known.values())
            level = min(b for b, s in known.items() if s[1] / s[2] >= PLATEAU * best)
            count, _, _, batches, contexts = known[level]
            self._last.pop(kind, None)
            self._last[kind] = max(1, round(batches / count)), contexts / count
        for kind in list(self._last)[:-MAX_KINDS]:
            del self._last[kind]
        self._sums.clear()

    def plateau(self, kind: Hashable, *, context: float) -> int:
        """Batch B for rollouts of that mean length; 0 while it is not known."""
        if kind not in self._last:
            return 0
        batch, measured = self._last[kind]
        return max(1, round(batch * measured / max(context, 1.0)))
