"""Settings of what leaves the learner: snapshots for servers, checkpoints to resume from."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.settings.model_config import Dtype
from rlboost_jax.settings.setting import setting

WeightsSource = Literal["auto", "directory", "http", "store"]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Snapshots that the learner publishes and servers pull."""

    rollout_dtype: Dtype = setting("float32", "type of the weights in snapshots and engines")
    keep_versions: int = setting(
        2, "snapshots kept besides those in use", at_least=1, may_change="at once"
    )
    deltas: tuple[int, ...] = setting(
        (),
        "a version has its differences from the versions so many before it, such as (1, 2, 4, 8); "
        "(): servers fetch versions whole",
        note="So many older versions are kept on the trainer's disk, and servers keep the version "
        "that they hold in their host's memory, too. It saves most with `rollout_dtype` bfloat16 "
        "and small learning rates. The weights of a server are the same bits with and without.",
        may_change="at once",
    )
    peers: bool = setting(
        False,
        "servers also fetch a version from each other, each piece while others are still to come",
        note="The trainer then sends a version about once, whoever wants it, and a line between "
        "zones carries each piece once. Servers listen at a port of their own; one that others "
        "cannot reach fetches only. A server keeps its version in its host's memory, and two "
        "while the next arrives. The weights are the same bits with and without.",
        may_change="at once",
    )
    peer_megabytes_per_second: float = setting(
        0.0,
        "that a server gives to others at most, so that tokens have room on its line; 0: no limit",
        unit="MB/s",
        at_least=0.0,
        may_change="at once",
    )
    source: WeightsSource = setting(
        "auto",
        'how servers pull; "auto": from the directory where they can see it, else from `store`, '
        "else from the trainer",
        may_change="at once",
    )
    store: str = setting(
        "",
        'object store to which the trainer puts each version before it is announced; "": none',
        may_change="at once",
        note="As `checkpoint.copy_to`, at another address. Servers need to read there, and then no "
        "port for weights; what they take has the digests of the sealed manifest.",
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
    keep_every: int = setting(
        0,
        "a checkpoint whose step is a multiple of this is never deleted; 0: only keep and "
        "evaluation.keep_best count",
        unit="steps",
        at_least=0,
        note="`--fork=RUN@STEP` begins a run from any checkpoint that is kept. Each takes the "
        "space of the whole training state.",
    )
    max_behind: int = setting(
        10,
        "number of steps within which a checkpoint must become durable; training then waits for it",
        at_least=1,
        note="With a large state training waits earlier, to save memory. The console, the page "
        "and an alert warn once the newest durable checkpoint is late by more than half of this.",
    )
    copy_to: str = setting(
        "",
        "where in an object store durable checkpoints are copied, with all that the run needs to "
        'go on elsewhere; "": nowhere',
        may_change="at once",
        note="`s3://BUCKET/PREFIX`, `gs://…`, `az://…` or `file:///FOLDER`. The newest `keep` "
        "copies stay. Training waits for none but the last. `rlboost restore` brings one back.",
    )
    disk_seconds: float = setting(
        600.0,
        "how long work on the disk may make no progress before the trainer ends",
        unit="s",
        at_least=1.0,
        note="Applies to checkpoints, versions for servers and rows of metrics. The same command "
        "resumes from the newest durable checkpoint; `--supervise` does so by itself.",
    )
