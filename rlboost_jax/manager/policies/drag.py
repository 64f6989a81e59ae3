"""By how much a fleet is slower than predicted once the seeding window has closed.

A plan leaves out what crowds a fleet at the handover. How much that was is measured after each
step by when the window should have ended; most of what one step shows of it is chance, since a
step hangs on its longest responses, so the newest counts for little once there are several.
"""

import math
from statistics import NormalDist

LEAST, MOST = 0.8, 1.6
LEAST_WEIGHT = 0.15  # of the newest step
FIRST_DOUBT = 0.05**2
MOST_DOUBT = 0.1  # that one step can raise, relative


class Drag:
    """Estimate of the drag, learned step by step.

    Attributes:
        value: times the seconds of preemptible engines, after the handover.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self._doubt = FIRST_DOUBT  # variance, relative
        self._steps = 0  # learnt from

    @property
    def deviation(self) -> float:
        """Relative standard deviation of the drag that one step shows."""
        return math.sqrt(self._doubt)

    def learn(self, planned: float, *, closed: float, should: float, critical: float) -> None:
        """Take in a step whose window was ended by plan, so that the learner should just not wait.

        Args:
            planned: the drag that was planned with.
            closed: when the window ended.
            should: when it should have ended, with the groups complete when they were.
            critical: when the groups were complete on which that depends.
        """
        if critical <= closed:
            return  # nothing that the fleet did made a difference
        seen = min(MOST, max(LEAST, planned * (1.0 + (should - closed) / (critical - closed))))
        error = min(MOST_DOUBT, abs(seen / self.value - 1.0))
        self._steps += 1
        weight = max(LEAST_WEIGHT, 1.0 / (1 + self._steps))
        self._doubt += weight * (error**2 - self._doubt)
        self.value += weight * (seen - self.value)

    def hedged(self, reserved: int, preemptible: int) -> float:
        """The drag to plan with: the one that minimises the expected step time.

        To close so many seconds too late costs as many; too early, as many more as there are
        reserved engines to each preemptible one, since these do the work alone. So the drag
        should be exceeded as often as the first is of both together, the newsvendor's critical
        ratio (Arrow, Harris and Marschak 1951).
        """
        if not (reserved and preemptible):
            return self.value
        quantile = NormalDist().inv_cdf(reserved / (reserved + preemptible))
        return self.value * max(LEAST, 1.0 + quantile * self.deviation)
