"""How long responses are, drawn from (seed, step) and nothing else.

The logarithm of a length is the sum of a part that a group shares and one of its own:
groups of easy prompts end early together, and the longest response of a step is several
times the mean. Lengths beyond the limit are cut off there, as a real sampler does.
"""

import math

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.simulator.sim_config import WorkloadConfig
from rlboost_jax.simulator.streams import stream


def response_lengths(workload: WorkloadConfig, *, seed: int, step: int) -> NDArray[np.int64]:
    """Draw the tokens of every response of a step, by sample (prompt · group size + place)."""
    random = stream("lengths", seed, step)
    prompts, size = workload.prompts_per_step, workload.group_size
    growth = (1 + workload.growth_per_step) ** step
    if workload.groups:
        drawn = random.integers(len(workload.groups), size=prompts)
        lengths = growth * np.array([workload.groups[i] for i in drawn], np.float64).ravel()
        return _cut(workload, lengths)
    shared = np.repeat(random.standard_normal(prompts), size)
    own = random.standard_normal(prompts * size)
    rho = workload.group_correlation
    noise = math.sqrt(rho) * shared + math.sqrt(1 - rho) * own
    median = workload.mean_tokens * growth / math.exp(workload.sigma**2 / 2)
    return _cut(workload, median * np.exp(workload.sigma * noise))


def _cut(workload: WorkloadConfig, lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.rint(lengths), 1, workload.max_response_tokens).astype(np.int64)
