"""In which order rollouts are begun where the longest are to come first.

Nothing is known of a prompt until some of its group are in the making. So one member of each
group is begun first, and whole groups with the slots that are left, since the learner is to have
something to begin with; then, as slots get free, what is expected to be longest.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WHOLE, PROBE, REST = 0.0, 1.0, 2.0  # ranks: the lower the sooner


def first_wave(sizes: Sequence[int], slots: int) -> NDArray[np.float64]:
    """Ranks while no rollout of a step has ended, group by group.

    Args:
        sizes: of the groups.
        slots: of all engines that work on the step.
    """
    left, ranks = slots - len(sizes), []
    for size in sizes:
        left -= size - 1
        ranks += [WHOLE] * size if left >= 0 else [PROBE] + [REST] * (size - 1)
    return np.array(ranks)
