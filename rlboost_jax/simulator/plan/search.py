"""Which mixes to simulate, until the Pareto front is known.

Every mix has a bound for each seed. Its mean over seeds, with what was simulated in place of
bounds, is no more than its mean will be. So a mix is ruled out, for certain, as soon as a mix whose
seeds have all been simulated beats these means: it is never among those that nobody would pass over
(`pareto.py`). Simulated are, a round at a time, those with the best means first.

A space with too many mixes for a bound of each is searched from its corners, by neighbours of
those that are best so far. That is a heuristic: what it has not looked at counts as left.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rlboost_jax.simulator.plan.mix_bound import Least
from rlboost_jax.simulator.plan.mix_run import MixSample
from rlboost_jax.simulator.plan.mixes import Mix, Space
from rlboost_jax.simulator.plan.pareto import Front, Point, front

EXHAUSTIVE: Final = 20_000  # mixes, at most: a bound is computed for each
ROUND: Final = 16  # simulations: whatever the number of processes, so that results do not depend

Task = tuple[Mix, int]  # and a seed
Bound = Callable[[Mix, int], Least]
Simulate = Callable[[Sequence[Task]], Sequence[MixSample]]


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    simulated: int  # mixes, all seeds of each
    begun: int
    ruled_out: int
    left: int


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Results of a search."""

    samples: Mapping[Mix, tuple[MixSample, ...]]  # of mixes whose seeds have all been simulated
    best: tuple[Mix, ...]  # that nobody would pass over, the fastest first
    ruled_out: int
    left: int  # neither simulated nor ruled out; 0: `best` is exact
    simulations: int


@dataclass(slots=True)
class _Open:
    """A mix that may still belong to the front."""

    mix: Mix
    least: list[Least]  # of each seed
    samples: list[MixSample] = field(default_factory=list)  # of the first seeds

    @property
    def point(self) -> Point:
        """Lower bound on the mix's means."""
        seconds = [s.seconds for s in self.samples] + [
            b.seconds for b in self.least[len(self.samples) :]
        ]
        dollars = [s.dollars for s in self.samples] + [
            b.dollars for b in self.least[len(self.samples) :]
        ]
        return statistics.fmean(seconds), statistics.fmean(dollars)

    @property
    def rank(self) -> tuple[float, Mix]:
        seconds, dollars = self.point
        return seconds * dollars, self.mix


class Search:
    """Search for the Pareto front of a space.

    Args:
        budget: simulations at most; 0: as many as it takes.
    """

    def __init__(
        self,
        space: Space,
        seeds: Sequence[int],
        *,
        bound: Bound,
        simulate: Simulate,
        budget: int = 0,
        tell: Callable[[SearchProgress], None] = lambda progress: None,
    ) -> None:
        self._space, self._seeds = space, seeds
        self._bound, self._simulate, self._budget, self._tell = bound, simulate, budget, tell
        self._front = Front()
        self._done: dict[Mix, tuple[MixSample, ...]] = {}
        self._known: set[Mix] = set()
        self._open: list[_Open] = []
        self._ruled_out = self._simulations = 0

    @property
    def exhaustive(self) -> bool:
        return self._space.size <= EXHAUSTIVE

    def run(self) -> SearchResult:
        self._take_in(self._space if self.exhaustive else self._space.corners())
        while self._open and not self._spent:
            self._round()
            if not self.exhaustive and not self._open:
                self._take_in(
                    each
                    for mix, samples in list(self._done.items())
                    if not self._front.beats(point_of(samples))
                    for each in self._space.neighbours(mix)
                )
        points = {mix: point_of(samples) for mix, samples in self._done.items()}
        mixes = sorted(points)
        best = tuple(mixes[i] for i in front([points[mix] for mix in mixes]))
        return SearchResult(
            samples=self._done,
            best=best,
            ruled_out=self._ruled_out,
            left=self._space.size - len(self._done) - self._ruled_out,
            simulations=self._simulations,
        )

    @property
    def _spent(self) -> bool:
        return 0 < self._budget <= self._simulations

    def _take_in(self, mixes: Iterable[Mix]) -> None:
        for mix in mixes:
            if mix not in self._known:
                self._known.add(mix)
                self._open.append(_Open(mix, [self._bound(mix, seed) for seed in self._seeds]))
        self._rule_out()

    def _round(self) -> None:
        """Simulate the next seed of the best mixes, then rule out the mixes that these beat."""
        room = min(ROUND, self._budget - self._simulations) if self._budget else ROUND
        chosen = sorted(self._open, key=lambda each: each.rank)[:room]
        # With few mixes left, several seeds of each at once.
        tasks: list[tuple[_Open, int]] = []
        depth = 0
        while len(tasks) < room and depth < len(self._seeds):
            for each in chosen:
                number = len(each.samples) + depth
                if number < len(self._seeds) and len(tasks) < room:
                    tasks.append((each, number))
            depth += 1
        samples = self._simulate([(each.mix, self._seeds[number]) for each, number in tasks])
        self._simulations += len(tasks)
        for (each, number), sample in sorted(
            zip(tasks, samples, strict=True), key=lambda pair: pair[0][1]
        ):
            assert number == len(each.samples)
            each.samples.append(sample)
        for each in chosen:
            if len(each.samples) == len(self._seeds):
                self._done[each.mix] = tuple(each.samples)
                self._front.add(point_of(each.samples))
        self._open = [each for each in self._open if each.mix not in self._done]
        self._rule_out()
        self._tell(
            SearchProgress(
                simulated=len(self._done),
                begun=sum(bool(each.samples) for each in self._open),
                ruled_out=self._ruled_out,
                left=self._space.size - len(self._done) - self._ruled_out,
            )
        )

    def _rule_out(self) -> None:
        kept = [each for each in self._open if not self._front.beats(each.point)]
        self._ruled_out += len(self._open) - len(kept)
        self._open = kept


def point_of(samples: Sequence[MixSample]) -> Point:
    return (
        statistics.fmean(each.seconds for each in samples),
        statistics.fmean(each.dollars for each in samples),
    )
