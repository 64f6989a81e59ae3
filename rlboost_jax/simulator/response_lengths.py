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
    # A prompt that comes again is as hard as it was.
    alike, drawn_for = random, prompts
    if workload.epoch_prompts:
        alike, drawn_for = stream("prompts", seed), workload.epoch_prompts
    place = prompts_of(workload, seed=seed, step=step) % drawn_for
    if workload.groups:
        drawn = alike.integers(len(workload.groups), size=drawn_for)[place]
        lengths = growth * np.array([workload.groups[i] for i in drawn], np.float64).ravel()
        return _cut(workload, lengths)
    shared = np.repeat(alike.standard_normal(drawn_for)[place], size)
    own = random.standard_normal(prompts * size)
    rho = workload.group_correlation
    noise = math.sqrt(rho) * shared + math.sqrt(1 - rho) * own
    median = workload.mean_tokens * growth / math.exp(workload.sigma**2 / 2)
    return _cut(workload, median * np.exp(workload.sigma * noise))


def prompts_of(workload: WorkloadConfig, *, seed: int, step: int) -> NDArray[np.int64]:
    """Return each prompt's number in the data set, which every epoch shuffles anew."""
    first, count = step * workload.prompts_per_step, workload.prompts_per_step
    if not workload.epoch_prompts:
        return np.arange(first, first + count)
    epochs = range(first // workload.epoch_prompts, -(-(first + count) // workload.epoch_prompts))
    orders = [stream("epochs", seed, e).permutation(workload.epoch_prompts) for e in epochs]
    begin = first - epochs[0] * workload.epoch_prompts
    return np.concatenate(orders)[begin : begin + count]


def _cut(workload: WorkloadConfig, lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.rint(lengths), 1, workload.max_response_tokens).astype(np.int64)
