"""Settings of what a run shows: live view, trackers, samples, profile."""

from dataclasses import dataclass, field
from typing import Final, Literal

from rlboost_jax.settings.alerts_config import AlertsConfig
from rlboost_jax.settings.page_config import PageConfig
from rlboost_jax.settings.setting import setting

WandbMode = Literal["online", "offline"]
TRACKERS: Final = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Where Weights & Biases keeps the run."""

    project: str = setting("rlboost-jax", "project, created if missing")
    entity: str = setting("", 'team or user; "": the account\'s own')
    name: str = setting("", 'name of the run; "": the workdir\'s')
    mode: WandbMode = setting("online", "offline needs no network; `wandb sync` uploads later")


@dataclass(frozen=True, kw_only=True)
class MlflowConfig:
    """Where MLflow keeps the run."""

    uri: str = setting(
        "",
        'address of the tracking server; "": MLFLOW_TRACKING_URI, or a file in <workdir>/mlflow',
        note="Names and passwords belong in MLFLOW_TRACKING_USERNAME and _PASSWORD or _TOKEN.",
    )
    experiment: str = setting("rlboost-jax", "experiment, created if missing")
    name: str = setting("", 'name of the run; "": the workdir\'s')


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """What a run shows and keeps; see docs/how-to/observability.md."""

    live: bool = setting(True, "redraw a live view when standard output is a terminal")
    trackers: tuple[str, ...] = setting(
        ("tensorboard",),
        "besides metrics.jsonl, samples.jsonl and the console: tensorboard, wandb, mlflow",
        note="They write to folders of these names in the workdir; wandb and mlflow need the "
        "extras of these names.",
    )
    wandb: WandbConfig
    mlflow: MlflowConfig = field(default_factory=MlflowConfig)
    page: PageConfig = field(default_factory=PageConfig)
    alerts: AlertsConfig = field(default_factory=AlertsConfig)
    samples_every_steps: int = setting(
        10,
        "steps between those that leave prompts and responses in samples.jsonl; 0: never",
        at_least=0,
    )
    samples_prompts: int = setting(
        2, "prompts of such a step, each with its whole group", unit="prompts", at_least=1
    )
    profile_step: int = setting(
        0,
        "the step whose processes are profiled on one time axis; 0: none",
        note="In <workdir>/profile, for ui.perfetto.dev. The first step is like no other.",
        at_least=0,
    )
    profile_jax: bool = setting(False, "the learner's process by jax.profiler in that step, too")
