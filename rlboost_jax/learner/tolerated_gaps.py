"""Tolerated gaps between servers' reports and the learner's numbers, and reports of doubts.

Two things are compared of every sampled token: its log-probability with the learner's, and its
choice with the one that its noise selects (`programs/choices.py`). A server that reports true
log-probabilities of tokens that it likes better fails the second. If it likes only tokens that a
single rounding might have chosen, the mean of its sequences is too large.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rlboost_jax import messages
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.run_config import RunConfig

EXACT: Final = 1e-3  # float32 with the same sums, or nearly: honest gaps are 1e-6 to 1e-4
SINGLE: Final = 0.05  # float32 whose products may be rounded: TF32 on GPUs, passes of bfloat16
ROUNDED: Final = 2.0  # 16-bit weights or caches: single tokens differ by tenths

# Choice gaps: probability by which rounding may move the edge of a token's interval.
EXACT_CHOICE: Final = 2e-5  # honest gaps are at most 2e-6
SINGLE_CHOICE: Final = 0.01
ROUNDED_CHOICE: Final = 0.25
ANY_CHOICE: Final = 1.0  # no choice is looked at
MEAN_SHARE: Final = 1 / 64  # of the bound of one token, for the mean of a sequence


class Gaps(NamedTuple):
    """Differences between servers' tokens and the learner's numbers, or their bounds."""

    logprob: float  # |recomputed - behaviour|, nats
    choice: float  # probability between a token's interval and its noise
    mean_choice: float  # of a sequence, see `mean_choice_gaps`
    outside: int = 0  # tokens whose noise is outside of their interval, in any number

    def within(self, tolerated: "Gaps") -> bool:
        """Whether every gap is at most its bound; False also if one is NaN."""
        return (
            self.logprob <= tolerated.logprob
            and self.choice <= tolerated.choice
            and self.mean_choice <= tolerated.mean_choice
        )

    def joined(self, other: "Gaps") -> "Gaps":
        """The larger of each gap, NaN where either is; tokens outside the bounds are added up."""
        logprob, choice, mean_choice, _ = (float(pair) for pair in np.maximum(self, other))
        return Gaps(logprob, choice, mean_choice, self.outside + other.outside)


NO_GAPS: Final = Gaps(0.0, 0.0, 0.0)


def tolerated_gaps(run: RunConfig, platform: str) -> Gaps:
    """The settings `learner.tolerated_…`, or what follows from the precision of rollouts.

    `logprob`: even a small update moves the log-probability of some token of a response by tenths,
    so a bound below that finds a server with other weights, and a looser one only gross lies.
    `choice`: a choice that rounding could have made passes, so among n likely tokens a share of
    2 n · bound could be replaced by their neighbours by id.
    `mean_choice`: a server that replaces many tokens within that bound has too large a mean.

    Args:
        platform: that the learner runs on, as JAX names it.
    """
    if {run.weights.rollout_dtype, run.engine.kv_dtype} != {"float32"}:
        logprob, choice = ROUNDED, ROUNDED_CHOICE
    elif platform == "cpu":
        logprob, choice = EXACT, EXACT_CHOICE
    else:
        logprob, choice = SINGLE, SINGLE_CHOICE
    choice = run.learner.tolerated_choice_gap or choice
    return Gaps(
        logprob=run.learner.tolerated_gap or logprob,
        choice=choice,
        mean_choice=choice if choice == ANY_CHOICE else choice * MEAN_SHARE,
    )


def message_of(batch: Batch, doubts: Sequence[DoubtedResponse]) -> messages.Doubt:
    """Message that reports one batch's doubts, of which there is at least one."""
    sequences = [doubt.sequence for doubt in doubts]
    return messages.Doubt(
        batch=batch,
        samples=messages.pack_ids([doubt.sample for doubt in doubts]),
        attempts=messages.pack_ids([doubt.attempt for doubt in doubts]),
        positions=messages.pack_ids([doubt.position for doubt in doubts]),
        sequences=messages.pack_ids(sequences) if any(sequences) else b"",
        checksums=messages.pack_ids([doubt.checksum for doubt in doubts]),
        gap=max(doubt.gap for doubt in doubts),
        choice_gap=max(doubt.choice_gap for doubt in doubts),
    )
