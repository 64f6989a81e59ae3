"""The settings that a rollout server receives: those of its engine, its weights and its leaving.

A server's host may be anybody's by tomorrow. Where the data lies, what prompts are made of, how
responses are judged (with the keys that a judge is asked with) and what anything costs is none of
its business: those settings do not leave the manager.
"""

from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, Final

from rlboost_jax.settings.alerts_config import AlertsConfig
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.config_loading import to_dict
from rlboost_jax.settings.data_config import DataConfig, TaskConfig
from rlboost_jax.settings.distillation_config import NOT_SAID, DistillationConfig, TeacherConfig
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.manager_config import ManagerConfig
from rlboost_jax.settings.observe_config import ObserveConfig, WandbConfig
from rlboost_jax.settings.outside import outside
from rlboost_jax.settings.page_config import PageConfig
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.sampling_config import EvaluationConfig, SamplingConfig
from rlboost_jax.settings.setting import is_required
from rlboost_jax.settings.speculation_config import SpeculationConfig
from rlboost_jax.settings.warmup_config import WarmupConfig
from rlboost_jax.settings.weights_config import CheckpointConfig

# Sections that are nearly all blank for servers. What is blank is not sent: servers of the release
# before would refuse a setting that they do not know.
_BLANK: Final = (
    *("data", "rewards", "warmup", "evaluation", "checkpoint", "manager", "observe", "fleet"),
    *("environment", "distillation", "speculation"),
)
# Sections that servers of the release before know nothing of.
_NEW: Final = ("environment", "distillation", "speculation")
_NEW_CHOICES: Final = ("turn_advantages", "turn_discount")  # of the algorithm, and the learner's


def sent_to_servers(run: RunConfig) -> dict[str, Any]:
    """What the manager answers with; whatever is missing has its default."""
    sent = for_servers(run)
    values = to_dict(sent)
    for section in _BLANK:
        values[section] = _without_defaults(getattr(sent, section), values[section])
    for section in _NEW:
        if not values[section]:
            del values[section]
    for name in _NEW_CHOICES:
        del values["algorithm"][name]
    for name in (
        "deltas",
        "store",
        "peers",
        "peer_megabytes_per_second",
    ):  # of servers that know these
        if not getattr(sent.weights, name):
            del values["weights"][name]
    # New, too; other noise is for servers that know it.
    if sent.sampling.noise == SamplingConfig().noise:
        del values["sampling"]["noise"]
    return values


def _without_defaults(record: Any, values: dict[str, Any]) -> dict[str, Any]:
    kept = [
        field
        for field in fields(record)
        if is_required(field) or getattr(record, field.name) != _default(field)
    ]
    return {
        field.name: _without_defaults(value, values[field.name])
        if is_dataclass(value := getattr(record, field.name))
        else values[field.name]
        for field in kept
    }


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def for_servers(run: RunConfig) -> RunConfig:
    """Return a run whose settings for others than servers have neutral values.

    It is a configuration like any other and passes all checks: servers of other releases read it.
    """
    fleet = run.fleet
    return replace(
        run,
        num_steps=max(1, run.num_steps),
        task=TaskConfig(name="dataset"),  # as if of a data set: the others check sizes against it
        data=DataConfig(
            source="none", tokenizer="bytes", max_prompt_tokens=run.engine.max_prompt_tokens
        ),
        rewards=RewardsConfig(functions=(RewardConfig(name="exact"),)),
        algorithm=_algorithm(run.algorithm),
        environment=EnvironmentConfig(max_given_tokens=run.environment.max_given_tokens),
        warmup=WarmupConfig(max_updates=0),
        distillation=_distillation(run),
        speculation=replace(run.speculation, kept_tokens=SpeculationConfig().kept_tokens),
        evaluation=EvaluationConfig(
            every_steps=0, top_p=run.evaluation.top_p, top_k=run.evaluation.top_k
        ),
        checkpoint=CheckpointConfig(),
        manager=ManagerConfig(),
        observe=ObserveConfig(
            wandb=WandbConfig(),
            page=PageConfig(),
            alerts=AlertsConfig(),
            profile_step=run.observe.profile_step,
        ),
        fleet=FleetConfig(
            provider="none",
            chaos=ChaosConfig(),
            orphan_seconds=fleet.orphan_seconds,
            notices=fleet.notices,
            notice_signal=fleet.notice_signal,
            notice_seconds=fleet.notice_seconds,
        ),
    )


def _algorithm(algorithm: AlgorithmConfig) -> AlgorithmConfig:
    """The learner's functions of other packages are not on a server's host."""

    def here(name: str, neutral: str) -> str:
        value: str = getattr(algorithm, name)
        return neutral if outside(name, value) else value

    return replace(
        algorithm,
        turn_advantages="episode",
        turn_discount=1.0,
        advantage=here("advantage", "group_std"),
        surrogate=here("surrogate", "clip"),
        correction=here("correction", "truncate"),
    )


def _distillation(run: RunConfig) -> DistillationConfig:
    """The architecture of teachers that servers hold. Their weights come as snapshots."""
    if not run.distillation.on_servers:
        return DistillationConfig()
    models = (each.model for each in run.distillation.teachers)
    teachers = tuple(
        TeacherConfig(source=NOT_SAID, model=model and replace(model, source=""))
        for model in models
    )
    return DistillationConfig(scored_by="servers", teachers=teachers)
