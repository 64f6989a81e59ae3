"""What an environment adds to a sequence."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from rlboost_jax.sequences.sequence import Sequence


def with_given(sequence: Sequence, tokens: ArrayLike) -> Sequence:
    """Somebody else's tokens after those that there are."""
    new = np.asarray(tokens, np.int32)
    *runs, last = sequence.runs
    if len(sequence.runs) % 2:  # the last run was given, too
        runs.append(last + len(new))
    elif len(new):
        runs += [last, len(new)]
    else:
        return sequence
    return replace(sequence, tokens=np.concatenate([sequence.tokens, new]), runs=tuple(runs))
