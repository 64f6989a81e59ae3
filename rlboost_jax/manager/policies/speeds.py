"""Speeds of engines, estimated from the token batches they send.

A decode step of a batch takes what the weights cost, something for every row and something for
every token of context that it reads; a rollout that comes with tokens is prefilled first. Over
any time in which an engine is never idle the sums are exact, however the messages are cut:

    seconds = step · N + row · Σ batch + context · Σ contexts + prefill · Σ prefilled

with Σ batch the tokens sampled and Σ contexts the length before each of them, which are known
from the tokens. With drafts rollouts sample several tokens a step, each as many as were accepted,
and no step is seen any more: then N is Σ batch over the rollouts in slots, so the tokens of a mean
rollout, and `row` says how much slower these get where many leave few rows for drafts. The four are
fitted by least squares, none of them negative, for every kind of instance; an instance that is
slower than its kind has a factor of its own.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.manager.policies.throughput import MAX_KINDS

Kind = tuple[Hashable, bool]  # what is alike in pace; whether it is the learner's own
FORGET = 0.5  # weight of a step's measurements in the next step
MIN_SPANS = 6  # of a kind, before its fit is believed
PREFILL = (3,)  # of the four unknowns
RIDGE = 1e-9  # keeps a fit to proportional sums solvable
SHRINK_SECONDS = 20.0  # of its kind's pace that an instance's own begins with
MIXED = 1.3  # times as slow as others: much slower
SLOWEST, FASTEST = 20.0, 0.05  # times its kind's seconds


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of one engine for each decode step, row, token read and token prefilled."""

    step: float
    row: float
    context: float
    prefill: float

    def step_seconds(self, batch: float, context: float) -> float:
        """Seconds of a decode step of `batch` rollouts that hold `context` tokens together."""
        return self.step + self.row * batch + self.context * context

    def times(self, factor: float) -> "Rates":
        """Rates of an engine that takes `factor` times as long for everything."""
        return Rates(
            step=self.step * factor,
            row=self.row * factor,
            context=self.context * factor,
            prefill=self.prefill * factor,
        )


class BusySpan:
    """Work of an instance since a moment at which all its tokens were known.

    Attributes:
        rows: rollouts in slots, on average; 0: all sample a token in each step.
    """

    __slots__ = ("contexts", "prefilled", "rows", "since", "steps", "tokens")

    def __init__(self, since: float) -> None:
        self.since, self.rows = since, 0.0
        self.steps: dict[int, int] = {}  # request → tokens
        self.tokens = self.contexts = self.prefilled = 0

    def sampled(
        self, request: int, before: int, count: int, *, first: bool, spared: int = 0
    ) -> None:
        """Add `count` tokens of a rollout that had `before` tokens, its prompt included.

        Args:
            first: of this placement; what was there before had to be prefilled,
            spared: but for so many.
        """
        self.steps[request] = self.steps.get(request, 0) + count
        self.tokens += count
        self.contexts += count * before + count * (count - 1) // 2
        if first:
            self.prefilled += before - spared

    def held(self, rows: float) -> None:
        """Say how many rollouts were in slots on average, which sampled unequally many tokens."""
        self.rows = rows

    def sums(self) -> tuple[float, float, float, float]:
        most = float(max(self.steps.values(), default=0))
        return (
            min(most, self.tokens / self.rows) if self.rows else most,
            float(self.tokens),
            float(self.contexts),
            float(self.prefilled),
        )


class Speeds:
    """Fitted speeds of all kinds of instances and factors of single instances."""

    def __init__(self) -> None:
        self._products: dict[Kind, NDArray[np.float64]] = {}  # kind → [5, 5] sums of products
        self._counts: dict[Kind, float] = {}
        self._rates: dict[Kind, Rates] = {}
        self._mixed = False
        self._own: dict[str, tuple[float, float]] = {}  # instance → seconds, its kind's for that

    def add(self, kind: Kind, name: str, span: BusySpan, now: float) -> None:
        """Add the work of an instance that was busy from the span's beginning until now."""
        seconds, sums = now - span.since, span.sums()
        if seconds <= 0 or not span.tokens:
            return
        if kind not in self._products:
            if len(self._products) >= MAX_KINDS:
                return
            self._products[kind] = np.zeros((5, 5))
        rates = self._rates.get(kind)
        if rates is not None:
            expected = float(np.dot(sums, (rates.step, rates.row, rates.context, rates.prefill)))
            own = self._own.get(name, (SHRINK_SECONDS, SHRINK_SECONDS))
            self._own[name] = own[0] + seconds, own[1] + expected
        # Longer spans say more, in proportion to their seconds.
        row = np.array([*sums, seconds])
        self._products[kind] += np.outer(row, row) / seconds
        self._counts[kind] = self._counts.get(kind, 0.0) + 1.0

    def end_step(self, present: Collection[str]) -> None:
        """Fit again, and forget instances that are no longer present."""
        for kind, products in self._products.items():
            if self._counts[kind] >= MIN_SPANS:
                self._rates[kind] = fit(products)
            products *= FORGET
            self._counts[kind] *= FORGET
        paces = [self.factor(name) for name in present] or [1.0]
        steps = [rates.step for (_, reserved), rates in self._rates.items() if not reserved]
        spread = max(steps, default=1.0) / max(min(steps, default=1.0), 1e-12)
        self._mixed = max(paces) * spread > MIXED * min(paces)
        kept = set(present)
        fresh = (1 - FORGET) * SHRINK_SECONDS
        self._own = {
            name: (FORGET * own + fresh, FORGET * kinds + fresh)
            for name, (own, kinds) in self._own.items()
            if name in kept
        }

    def rates(self, kind: Kind) -> Rates | None:
        """Rates of a kind; None while they are unknown."""
        return self._rates.get(kind)

    @property
    def mixed(self) -> bool:
        """Whether preemptible kinds or instances differ much in pace, as of the last step."""
        return self._mixed

    def factor(self, name: str) -> float:
        """Seconds of an instance relative to its kind's."""
        own, kinds = self._own.get(name, (1.0, 1.0))
        return min(SLOWEST, max(FASTEST, own / kinds)) if kinds > 0 else 1.0


def fit(products: NDArray[np.float64]) -> Rates:
    """The non-negative least-squares fit to sums of products of (four sums, seconds).

    Four unknowns have sixteen sets that may be more than 0, so all are tried in which a decode
    step takes some time: a few spans of many prefills may be explained by these alone.
    """
    gram, target = products[:4, :4], products[:4, 4]
    scale = np.sqrt(np.maximum(gram.diagonal(), 1e-300))
    gram, target = gram / np.outer(scale, scale), target / scale
    best, least = np.zeros(4), 0.0
    for size in range(1, 5):
        for chosen in combinations(range(4), size):
            if chosen == PREFILL or any(gram[i, i] < 0.5 for i in chosen):  # never seen
                continue
            part = np.ix_(chosen, chosen)
            found = np.linalg.solve(gram[part] + RIDGE * np.eye(size), target[list(chosen)])
            if (found < 0).any():
                continue
            error = float(found @ gram[part] @ found - 2 * found @ target[list(chosen)])
            if error < least:
                best, least = np.zeros(4), error
                best[list(chosen)] = found
    values = best / scale
    return Rates(step=float(values[0]), row=float(values[1]), context=float(values[2]),
                 prefill=float(values[3]))  # fmt: skip
