"""How long responses will be, predicted from the steps before and from the group's other members.

Lengths of past steps give a survival curve (Kaplan and Meier 1958, equation 2), in which a
abandoned response counts as longer than what there is of it. Their normal scores z are
correlated within a group, z = √ρ a + √(1 − ρ) e with a shared by the group, so that members
that have ended, or have not ended yet, tell of the others: the posterior of a is taken as
normal around its mode (Laplace's approximation). Nothing is random: where a sample of what is
not known is needed, it is the points of a Weyl sequence.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

STEPS = 3  # that the curve is made of; lengths drift as the policy learns
MOST_CORRELATED = 0.98
NEWTON_STEPS = 6
GRID = np.linspace(-9.0, 9.0, 3601)  # of normal scores, for the tables below
_LOG_TAIL = np.log([0.5 * math.erfc(z / math.sqrt(2.0)) for z in GRID])
_HAZARD = np.exp(-0.5 * GRID**2 - _LOG_TAIL) / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, kw_only=True)
class Responses:
    """Finished and unfinished responses of one step; all arrays have one entry for each."""

    group: Indices  # 0, 1, … without gaps
    tokens: Floats  # so far
    ended: NDArray[np.bool_]

    @property
    def num_groups(self) -> int:
        return int(np.max(self.group)) + 1 if len(self.group) else 0


def kaplan_meier(lengths: Floats, ended: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Distinct lengths at which responses ended, and the share of responses longer than each."""
    values, events = np.unique(lengths[ended], return_counts=True)
    at_risk = len(lengths) - np.searchsorted(np.sort(lengths), values, side="left")
    return values, np.cumprod(1.0 - events / at_risk).astype(np.float64)


class Lengths:
    """Predictor of response lengths, learnt from past steps."""

    def __init__(self) -> None:
        self._steps: deque[Responses] = deque(maxlen=STEPS)
        self.correlation = 0.0  # ρ, of normal scores within a group
        self._logs = self._scores = np.empty(0)  # of the curve: log length → normal score
        self._spread = 1.0  # of log lengths, for what is beyond the curve

    @property
    def known(self) -> bool:
        return len(self._logs) > 1

    def learn(self, step: Responses) -> None:
        """Learn the lengths of a finished step."""
        if not step.ended.any():
            return
        self._steps.append(step)
        tokens = np.concatenate([s.tokens for s in self._steps])
        ended = np.concatenate([s.ended for s in self._steps])
        values, beyond = kaplan_meier(np.maximum(tokens, 1.0), ended)
        before = np.concatenate([[1.0], beyond[:-1]])
        middle = np.clip((before + beyond) / 2, 0.5 / len(tokens), 1 - 0.5 / len(tokens))
        self._logs, self._scores = np.log(values), _score(middle)
        self._spread = max(0.05, float(np.std(np.log(np.maximum(tokens[ended], 1.0)))))
        self.correlation = self._correlation()

    def expected(self, step: Responses) -> Floats:
        """Median length of each response, given the lengths in its group so far."""
        mode, _ = self._effects(step)
        return self._draw(step, mode, np.full(len(step.tokens), 0.5))

    def scenario(self, step: Responses) -> Floats:
        """Lengths of a plausible outcome of the step.

        Finished responses keep theirs; the others are spread over the quantiles of what is possible
        for each.
        """
        mode, deviation = self._effects(step)
        effects = mode + deviation * _score(1.0 - _weyl(step.num_groups, math.sqrt(2.0)))
        return self._draw(step, effects, _weyl(len(step.tokens), (1 + math.sqrt(5.0)) / 2))

    def _draw(self, step: Responses, effects: Floats, shares: Floats) -> Floats:
        """A length for each unfinished response: the quantile `shares` of its possible lengths."""
        mean = math.sqrt(self.correlation) * effects[step.group]
        own = math.sqrt(1.0 - self.correlation)
        tail = _log_tail((self._score_of(step.tokens) - mean) / own) + np.log1p(-shares)
        scores = mean + own * _score_of_log_tail(tail)
        lengths = np.maximum(np.ceil(self._length_of(scores)), step.tokens + 1.0)
        return np.where(step.ended, step.tokens, lengths)

    def _effects(self, step: Responses) -> tuple[Floats, Floats]:
        """Mode and standard deviation of every group's shared part a, by Newton's method."""
        rho, groups = self.correlation, step.num_groups
        effects, own = np.zeros(groups), math.sqrt(1.0 - rho)
        curvature = np.ones(groups)
        scores = self._score_of(step.tokens)
        for _ in range(NEWTON_STEPS):
            distance = (scores - math.sqrt(rho) * effects[step.group]) / own
            hazard = _hazard(distance)
            slope = np.where(step.ended, distance, hazard)
            # Between 0 and 1; the tables end, and a response may be far beyond what was known.
            slopes = np.clip(hazard * (hazard - distance), 0.0, 1.0)
            bend = np.where(step.ended, 1.0, slopes)
            gradient = np.bincount(step.group, slope, groups) * math.sqrt(rho) / own - effects
            curvature = np.asarray(1.0 + np.bincount(step.group, bend, groups) * rho / (1.0 - rho))
            effects += gradient / curvature
        return effects, 1.0 / np.sqrt(curvature)

    def _correlation(self) -> float:
        """Correlation of two members of a group: the mean over all pairs of the last step."""
        step = self._steps[-1]
        scores = self._score_of(step.tokens)[step.ended]
        group = step.group[step.ended]
        sums = np.bincount(group, scores)
        squares, sizes = np.bincount(group, scores**2), np.bincount(group)
        pairs, total = float((sizes * (sizes - 1)).sum()), float(squares.sum())
        if not pairs or not total:
            return 0.0
        together = float((sums**2 - squares).sum()) / pairs
        return min(MOST_CORRELATED, max(0.0, together / (total / len(scores))))

    def _score_of(self, tokens: Floats) -> Floats:
        """Normal score of a length; extrapolated beyond the curve as if log-normal."""
        logs = np.log(np.maximum(tokens, 1e-9))
        inside = np.interp(logs, self._logs, self._scores)
        beyond = np.maximum(logs - self._logs[-1], 0.0) + np.minimum(logs - self._logs[0], 0.0)
        return np.clip(inside + beyond / self._spread, GRID[0], GRID[-1])

    def _length_of(self, scores: Floats) -> Floats:
        inside = np.interp(scores, self._scores, self._logs)
        beyond = np.maximum(scores - self._scores[-1], 0.0)
        beyond += np.minimum(scores - self._scores[0], 0.0)
        return np.exp(np.minimum(inside + beyond * self._spread, 30.0))


def _weyl(count: int, irrational: float) -> Floats:
    """The first `count` points of a Weyl sequence, which fill (0, 1) evenly."""
    points = (0.5 + irrational * np.arange(1, count + 1, dtype=np.float64)) % 1.0
    return np.asarray(points * (1 - 2e-6) + 1e-6, np.float64)


def _log_tail(score: Floats) -> Floats:
    """Logarithm of the share of a standard normal variable above a score."""
    return np.interp(score, GRID, _LOG_TAIL)


def _score_of_log_tail(log_tail: Floats) -> Floats:
    return np.interp(-log_tail, -_LOG_TAIL, GRID)


def _score(tail: Floats) -> Floats:
    """Normal score that the share `tail` of a standard normal variable exceeds."""
    return _score_of_log_tail(np.log(tail))


def _hazard(score: Floats) -> Floats:
    """Hazard of a standard normal variable at a score: its density over its tail."""
    return np.interp(score, GRID, _HAZARD)


def responses(groups: Sequence[Sequence[tuple[int, bool]]]) -> Responses:
    """Build `Responses` from (tokens, ended) of each response, by group."""
    return Responses(
        group=np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
        tokens=np.array([tokens for group in groups for tokens, _ in group], float),
        ended=np.array([ended for group in groups for _, ended in group], bool),
    )
