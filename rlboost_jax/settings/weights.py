"""Settings of what leaves the learner: snapshots for servers, checkpoints to resume from."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.settings.model import Dtype
from rlboost_jax.settings.setting import setting

WeightsSource = Literal["auto", "directory", "http"]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Snapshots that the learner publishes and servers pull."""

    rollout_dtype: Dtype = setting("float32", "type of the weights in snapshots and engines")
    keep_versions: int = setting(
        2, "snapshots kept besides those in use", at_least=1, may_change="at once"
    )
    source: WeightsSource = setting(
        "auto",
        'how servers pull; "auto": from the directory where they can see it',
        may_change="at once",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints that a run resumes from."""

    every_steps: int = setting(1, "steps between checkpoints", at_least=1)
    keep: int = setting(
        2,
        "newest checkpoints that are kept",
        at_least=2,
        note="One that does not hold what was written is put aside, and the run goes on from the "
        "one before. None is deleted before a newer one was read back from the disk.",
    )
    max_behind: int = setting(
        10,
        "steps that a checkpoint may take to become durable; then training waits for it",
        at_least=1,
        note="A larger state waits earlier, for want of memory. From half of it on the console, "
        "the page and the alerts say that the newest durable checkpoint is behind.",
    )
    disk_seconds: float = setting(
        600.0,
        "how long the disk of the work directory may get nothing done before the trainer ends",
        unit="s",
        at_least=1.0,
        note="Of a checkpoint, a version for servers, or rows of metrics. The same command, and "
        "`--supervise` by itself, goes on from the newest durable checkpoint.",
    )
