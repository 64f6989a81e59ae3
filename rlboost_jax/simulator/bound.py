"""What no policy can beat, not even one that knows all lengths.

Of one step that is sampled from the very version that it updates (`step_bound`), with at most n
preemptible instances at any time, by these relaxations:

- Generation is divisible at will, moves for nothing and is never cut off. N decode steps of one
  engine take N · a + b · Q seconds (a: weights and overhead, b: per token read) where they yield
  L tokens that read Q of context; since a step has at most `slots` rows and `kv_tokens` of
  context, N ≥ max(L / slots, Q / kv_tokens). With drafts all of these are a share of themselves
  (`EngineRates.step_line`), as if each response always had all drafts.
- A response alone in its engine takes r seconds, and its group as long as its longest member.
- Reserved chips generate or train: of a step of S seconds they generate for S − C at most, with
  C all that the learner does. So by a time t engines have worked for E(t) = N_resv · min(t, S − C)
  + n · t seconds, and the i-th group to be complete is so at e_i at the earliest: neither before
  the i-th shortest r, nor before E(t) covers the work of any i groups.
- From e_i on the learner still has what remains at the least: the shortest trainings of as many
  groups as are left. S is no less than any e_i and that.

S stands on both sides; the right one falls as it grows, so the least is found by bisection.
Dollars are those of S and of the instance-seconds that generation takes beyond S − C of all
reserved engines; instances start for nothing, are paid while they work, and pull for nothing.

Of a run whose batches may be generated ahead, as far as one likes (`run_bound`), tails and the
order of steps bind nobody: the learner works for the sum of all C, and all engines together have
to do the sum of all works, the reserved ones in what the learner leaves of their time.

Of a run with a lag of k (`lag_bound`) batch b is generated after step b − k − 1 has ended, at
T(b − k − 1), and not before:

- T(b) is C after T(b − 1) at the earliest,
- and no sooner after T(b − k − 1) than its i-th response can be complete and what remains trained;
- between T(a − k − 1) and T(b) engines have to do the works of the batches a to b, the reserved
  ones in what the learner leaves of the steps a − k to b.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.sim_config import SimConfig

HALVINGS = 60
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Lower bounds on the seconds and dollars of one step."""

    learner: float  # had all responses been there from the start
    liquid: float  # were there no tails: only the sum of all work counts
    latency: float  # were there any number of engines
    step: float  # all together
    dollars: float


def step_bound(config: SimConfig, lengths: Sequence[int] | NDArray[np.int64], n: int) -> Bound:
    """Compute a step's lower bounds, whatever the policy.

    Args:
        lengths: tokens of every response, by sample.
        n: preemptible instances there are at most.
    """
    trainer, own = config.trainer, config.num_engines
    tokens, reads = _tokens(config, lengths)
    rates = [EngineRates(config, reserved=side) for side in (False, True)]
    works = _least_works(config, tokens, reads)
    shortest = np.minimum(*(_alone(each, tokens, reads) for each in rates))
    trained, after = _trained(config, tokens)
    learner = _learner_seconds(config, trained, after) + trainer.switch_seconds
    remaining = np.cumsum(np.sort(trained))[::-1]  # at least, when the i-th group is complete

    def worked(seconds: float) -> Floats:
        """Earliest times by which engines can finish the work, in a step of so many seconds."""
        seeding = max(0.0, seconds - learner)
        later = works - own * seeding  # of the instances alone
        alone = later / n if n else np.where(later > 0, np.inf, 0.0)
        return np.maximum(works / (own + n), alone)

    def least(earliest: Callable[[float], Floats]) -> float:
        low, high = learner, learner + float(works[-1]) / own + float(shortest[-1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            end = trainer.begin_seconds + float(np.max(earliest(middle) + remaining)) + after
            low, high = (low, middle) if end <= middle else (middle, high)
        return low

    step = least(lambda seconds: np.maximum(shortest, worked(seconds)))
    hourly = config.reserved.nodes * config.reserved.price_per_node_hour

    def dollars(seconds: float) -> float:
        instance_seconds = max(0.0, float(works[-1]) - own * (seconds - learner))
        paid = seconds * hourly + instance_seconds * config.instance.price_per_hour
        return paid / 3600

    return Bound(
        learner=learner,
        liquid=least(worked),
        latency=least(lambda _: shortest),
        step=step,
        dollars=min(dollars(step), dollars(max(step, learner + float(works[-1]) / own))),
    )


def run_bound(
    config: SimConfig,
    steps: Sequence[Sequence[int] | NDArray[np.int64]],
    instance_seconds: Callable[[float], float],
) -> float:
    """Least seconds that some steps take together, however far ahead they are generated.

    Args:
        steps: of each, the tokens of every response, by sample.
        instance_seconds: that preemptible instances are there for within the first so many
            seconds; it does not fall.
    """
    own = config.num_engines
    learner = total = 0.0
    for lengths in steps:
        tokens, reads = _tokens(config, lengths)
        trained, after = _trained(config, tokens)
        total += float(_least_works(config, tokens, reads)[-1])
        learner += _learner_seconds(config, trained, after)
    low, high = learner, learner + total / own
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = own * (middle - learner) + instance_seconds(middle) >= total
        low, high = (low, middle) if enough else (middle, high)
    return low


def lag_bound(
    config: SimConfig,
    steps: Sequence[Sequence[int] | NDArray[np.int64]],
    instance_seconds: Callable[[float], float],
    *,
    lag: int,
    ends: Sequence[float] = (),
) -> list[float]:
    """Earliest end of each of some steps, in seconds from the first one's begin.

    Args:
        steps: of each, the tokens of every response, by sample.
        instance_seconds: that preemptible instances are there for within the first so many
            seconds; it does not fall.
        lag: batches that may be generated ahead.
        ends: of the first steps, where they are known.
    """
    rates = [EngineRates(config, reserved=side) for side in (False, True)]
    works, learners, latencies = [], [], []
    for lengths in steps:
        tokens, reads = _tokens(config, lengths)
        trained, after = _trained(config, tokens)
        remaining = np.cumsum(np.sort(trained))[::-1]
        shortest = np.minimum(*(_alone(each, tokens, reads) for each in rates))
        works.append(float(_least_works(config, tokens, reads)[-1]))
        learners.append(_learner_seconds(config, trained, after))
        latencies.append(float(np.max(shortest + remaining)) + after)
    found = list(ends)

    def end_of(step: int) -> float:
        return found[step] if step >= 0 else 0.0

    for step in range(len(found), len(steps)):

        def enough(seconds: float, step: int = step) -> bool:
            for first in range(step + 1):
                since, known = end_of(first - lag - 1), max(0, first - lag)
                free = config.num_engines * (seconds - since - sum(learners[known : step + 1]))
                lent = instance_seconds(seconds) - instance_seconds(since)
                if free + lent < sum(works[first : step + 1]):
                    return False
            return True

        low = max(end_of(step - 1) + learners[step], end_of(step - lag - 1) + latencies[step])
        high = low + sum(works) / config.num_engines
        if enough(low):
            high = low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        found.append(low)
    return found


def _learner_seconds(config: SimConfig, trained: Floats, after: float) -> float:
    """Seconds of the learner's own work in a step, during which its chips do nothing else."""
    return config.trainer.begin_seconds + float(trained.sum()) + after


def _tokens(config: SimConfig, lengths: Sequence[int] | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Tokens of every response, by group, and the tokens of context that it reads."""
    work = config.workload
    tokens = np.asarray(lengths, np.float64).reshape(-1, work.group_size)
    return tokens, tokens * work.prompt_tokens + tokens * (tokens - 1) / 2


def _trained(config: SimConfig, tokens: Floats) -> tuple[Floats, float]:
    """Seconds that the learner trains on each group, and the update's, counted once."""
    work, trainer = config.workload, config.trainer
    groups = [[work.prompt_tokens + int(t) for t in group] for group in tokens]
    seconds = np.array([train_seconds(config, group) for group in groups])
    after = trainer.apply_seconds + config.weight_bytes / config.links.host_bytes_per_second
    return seconds + trainer.micro_batch_seconds / trainer.micro_batch_prompts, after


def _least_works(config: SimConfig, tokens: Floats, reads: Floats) -> Floats:
    """Least `_works` of reserved engines and of instances."""
    longest = float(np.max(tokens)) + config.workload.prompt_tokens
    rates = (EngineRates(config, reserved=side) for side in (False, True))
    return np.asarray(np.minimum(*(_works(each, tokens, reads, longest) for each in rates)))


def _works(rates: EngineRates, tokens: Floats, reads: Floats, longest: float) -> Floats:
    """Least engine-seconds of any i + 1 groups, at index i.

    Steps are as many as slots make necessary, and as many as the cache does; of each the least
    sums over groups.
    """
    fixed, slope = rates.step_line
    room = max(float(rates.kv_tokens), longest)
    ways = (fixed * tokens / rates.slots, fixed * reads / room)
    sums = [np.cumsum(np.sort((way + slope * reads).sum(axis=1))) for way in ways]
    return np.asarray(np.maximum(*sums), np.float64)


def _alone(rates: EngineRates, tokens: Floats, reads: Floats) -> Floats:
    """Seconds of each group in an engine of its own, the shortest first."""
    fixed, slope = rates.step_line
    return np.asarray(np.sort((tokens * fixed + slope * reads).max(axis=1)), np.float64)
