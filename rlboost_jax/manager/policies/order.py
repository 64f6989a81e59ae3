"""Order in which rollouts are started if the longest are to come first, or those that lead.

The longest: nothing is known of a prompt until some of its group are in the making. So whole groups
are begun first, for the learner to begin with, but only with the slots that one member of each
other group leaves; then, as slots get free, what is expected to be longest.

That shortens a step's tail, and groups are complete later, which a learner may have to wait for:
it is worth it where a step has several times as many rollouts as there are slots.

Those that lead: one response of each prompt begins before the second of any, so that engines can
draft the others from what it says. The others follow group by group, for groups to be complete:
those first that most has been said of, which are likely to be long, too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rlboost_jax.manager.policies.length_prediction import Floats, Indices

WHOLE, PROBE, REST = 0.0, 1.0, 2.0  # ranks: the lower the sooner
LEADS = -math.inf
RANKINGS = 64  # of the queue in a step, at most


def first_wave(sizes: Sequence[int], slots: int) -> Floats:
    """Ranks of the rollouts before any rollout of a step has ended, group by group.

    Args:
        sizes: of the groups.
        slots: of all engines that work on the step.
    """
    left, ranks = slots - len(sizes), []
    for size in sizes:
        left -= size - 1
        ranks += [WHOLE] * size if left >= 0 else [PROBE] + [REST] * (size - 1)
    return np.array(ranks)


def later_waves(ranks: Floats, begun: Sequence[Sequence[bool]]) -> Floats:
    """Ranks of the rollouts once some have ended.

    They are as given, except that one member comes first of each group of which nothing is known.
    """
    first = np.cumsum([0, *(len(group) for group in begun)])[:-1]
    unknown = np.array([not any(group) for group in begun])
    found = ranks.copy()
    found[first[unknown]] = -np.inf
    return found


def predicted_order(group: Indices, lengths: Floats, slots: int) -> Indices:
    """Predicted starting order, if each group's mean is known after the first wave.

    Args:
        group: of each rollout, in ascending order.
        lengths: of each.
    """
    sizes = np.bincount(group)
    wave = first_wave(sizes.tolist(), slots)
    means = np.bincount(group, lengths) / sizes
    return np.lexsort((np.where(wave == REST, -means[group], 0.0), wave))


def leaders_order(group: Indices, lengths: Floats) -> Indices:
    """Predicted starting order where one response of each group leads.

    Args:
        group: of each rollout, in ascending order.
        lengths: of each.
    """
    leads = np.diff(group, prepend=-1) > 0
    texts = lengths[leads][np.cumsum(leads) - 1]  # of each one's leader
    return np.lexsort((np.where(leads, 0.0, -texts), ~leads))


def leaders_first(
    samples: Iterable[int], group_size: int, texts: Mapping[int, int]
) -> dict[int, float]:
    """Rank of each sample: the first of each group leads.

    Args:
        texts: tokens of the longest response so far, by group.
    """
    return {
        sample: -float(texts[sample // group_size]) if sample % group_size else LEADS
        for sample in samples
    }
