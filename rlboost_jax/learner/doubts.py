"""How far a server's log-probabilities may be from the learner's own, in nats, and how those that
are farther are reported to the manager."""

from collections.abc import Sequence
from typing import Final

from rlboost_jax import messages
from rlboost_jax.learner.stream.step_stream import Doubt
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.run import RunConfig

EXACT: Final = 1e-3  # float32 with the same sums, or nearly: honest gaps are 1e-6 to 1e-4
SINGLE: Final = 0.05  # float32 whose products may be rounded: TF32 on GPUs, passes of bfloat16
ROUNDED: Final = 2.0  # 16-bit weights or caches: single tokens differ by tenths


def tolerated_gap(run: RunConfig, platform: str) -> float:
    """`learner.tolerated_gap`, or what follows from the precision of rollouts.

    Even a small update moves the log-probability of some token of a response by tenths; what a
    looser bound still sees are gross lies.

    Args:
        platform: that the learner runs on, as JAX names it.
    """
    if run.learner.tolerated_gap:
        return run.learner.tolerated_gap
    if {run.weights.rollout_dtype, run.engine.kv_dtype} != {"float32"}:
        return ROUNDED
    return EXACT if platform == "cpu" else SINGLE


def message_of(batch: Batch, doubts: Sequence[Doubt]) -> messages.Doubt:
    """A report of one batch's doubts, of which there is at least one."""
    sequences = [doubt.sequence for doubt in doubts]
    return messages.Doubt(
        batch=batch,
        samples=messages.pack_ids([doubt.sample for doubt in doubts]),
        attempts=messages.pack_ids([doubt.attempt for doubt in doubts]),
        positions=messages.pack_ids([doubt.position for doubt in doubts]),
        sequences=messages.pack_ids(sequences) if any(sequences) else b"",
        checksums=messages.pack_ids([doubt.checksum for doubt in doubts]),
        gap=max(doubt.gap for doubt in doubts),
    )
