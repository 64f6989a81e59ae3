"""Independent random streams, by name: what one consumes moves nothing in another.

Systems and policies that are compared see common random numbers: response lengths are a
function of (seed, step) and a market one of its seed, whatever is done with either.
Common random numbers take the noise that two systems share out of their difference (Law 2015,
Simulation Modeling and Analysis, section 11.2).
"""

from typing import Final

import numpy as np

NAMES: Final = (
    *("lengths", "kept machines", "arrivals", "losses", "droughts", "bootstrap", "answers"),
    *("machines", "trace begins", "risk", "pieces", "epochs", "prompts"),
)


def stream(name: str, seed: int, *path: int) -> np.random.Generator:
    """Make the random generator of a stream.

    Args:
        name: one of `NAMES`.
        path: position within the stream, such as a step.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(NAMES.index(name), *path)))
