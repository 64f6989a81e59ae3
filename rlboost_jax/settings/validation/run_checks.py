"""Every check of a configuration, before the first device is touched.

Each check yields one line per mistake: the value, the limit, the setting to change. Those of the
longer sections are in files of their own beside this one.
"""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from rlboost_jax.algorithms.outside_functions import check_outside_functions
from rlboost_jax.platform.mistakes import ConfigError, install, suggestion
from rlboost_jax.platform.object_store import objection_to_url
from rlboost_jax.sequences.identities import MOST_TRAINED
from rlboost_jax.settings.ec2_config import ec2_mistakes
from rlboost_jax.settings.fleet_config import PROVIDER_IS_GIVEN, FleetConfig
from rlboost_jax.settings.kubernetes_config import kubernetes_mistakes
from rlboost_jax.settings.launchers_config import command_mistakes, slurm_mistakes
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.observe_config import TRACKERS
from rlboost_jax.settings.outside import Outside, loaded
from rlboost_jax.settings.page_config import host_mistakes
from rlboost_jax.settings.pool_fleets import pool_mistakes
from rlboost_jax.settings.ranges import out_of_range
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.skypilot_config import skypilot_mistakes
from rlboost_jax.settings.task_sizes import (
    DATASET,
    ENVIRONMENT,
    MIN_LENGTH,
    NUM_COUNTERS,
    task_size,
)
from rlboost_jax.settings.traces import read_trace
from rlboost_jax.settings.validation.algorithm_checks import algorithm_mistakes
from rlboost_jax.settings.validation.data_checks import dataset_mistakes, leftovers, warmup_mistakes
from rlboost_jax.settings.validation.engine_checks import engine_mistakes
from rlboost_jax.settings.validation.environment_checks import environment_mistakes
from rlboost_jax.settings.validation.learner_checks import learner_mistakes
from rlboost_jax.settings.validation.model_checks import lora_mistakes, model_mistakes

MAX_TRAINED: Final = 2**19  # responses of one batch; half of what the manager takes of a step
MAX_EVALUATED: Final = 2**19  # responses of one evaluation; the other half
# Responses are numbered group by group, those of the last held-out prompt last, in 32 bits.
MAX_GROUP: Final = 2**32 // (MOST_TRAINED + MAX_EVALUATED)
TEXT_VOCABULARY: Final = 1024  # tokens: generated tasks have a tenth of it, text has more
OPTIONAL: Final = ("wandb", "mlflow")  # trackers with an extra of their own


def check(config: RunConfig) -> None:
    """Raise ConfigError with one line per mistake."""
    mistakes = list(out_of_range(config))
    if not mistakes:  # the checks of fields against each other may count on the ranges
        checks = (
            *(_task, environment_mistakes, _sampling, algorithm_mistakes, _responses),
            *(warmup_mistakes, learner_mistakes),
            *(engine_mistakes, _manager, _weights, _fleet, _observe, _evaluation, _rest),
        )
        mistakes = [
            *model_mistakes(config.model),
            *lora_mistakes(config.model),
            *_adapter_to_begin_with(config),
            *(mistake for fields in checks for mistake in fields(config)),
        ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _adapter_to_begin_with(config: RunConfig) -> Iterator[str]:
    if config.model.lora.source and config.warmup.generated:
        yield (
            f"warmup.max_updates is {config.warmup.max_updates}, which changes the base that the "
            f"adapter of model.lora.source ({config.model.lora.source!r}) belongs to; set it to 0"
        )


def check_model(model: ModelConfig) -> None:
    """Raise ConfigError with one line per mistake of an architecture alone."""
    mistakes = list(out_of_range(SimpleNamespace(model=model), "model."))
    mistakes = mistakes or list(model_mistakes(model))
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_files(
    config: RunConfig,
    *,
    installed: Callable[[str], bool] = _installed,
    program: Callable[[str], object] = shutil.which,
) -> None:
    """Raise ConfigError where a file, a library, a program or a function of the run is missing.

    Args:
        installed: whether a package is.
        program: where a program is, if anywhere.
    """
    check_outside_functions(config.algorithm)
    fleet = config.fleet
    for provider in fleet.outside_functions:
        loaded(provider, PROVIDER_IS_GIVEN)
    if fleet.trace not in ("", "synthetic"):
        read_trace(fleet.trace)
    providers = {pool.provider for pool in fleet.pools} or {fleet.provider}
    if "kubernetes" in providers and not installed("lightkube"):
        raise ConfigError(
            "fleet.provider is 'kubernetes', which needs lightkube; choose another one, or "
            f"{install('kubernetes')}"
        )
    if "slurm" in providers and not program("sbatch"):
        raise ConfigError(
            "fleet.provider is 'slurm', and there is no sbatch on the PATH; start the run where "
            "Slurm's programs are, or choose another one"
        )
    for name in config.observe.trackers:
        if name in OPTIONAL and not installed(name):
            raise ConfigError(
                f"observe.trackers has {name!r}, which is not installed; take it out, or "
                f"{install(name)}"
            )


def _task(config: RunConfig) -> Iterator[str]:
    task = config.task
    if task.name == DATASET:
        yield from dataset_mistakes(config)
        return
    yield from leftovers(config)
    if task.name == ENVIRONMENT:
        return
    if config.model.source and config.model.vocab_size > TEXT_VOCABULARY:
        yield (
            f"model.source is {config.model.source!r}, a model of text ({config.model.vocab_size} "
            f"tokens), and task {task.name!r} has a language of its own; set task.name to "
            "'dataset' and name data.source, or begin with a file such as "
            "configs/qwen25_05b_gsm8k.py"
        )
    if config.evaluation.num_prompts > task.num_heldout:
        yield (
            f"evaluation.num_prompts is {config.evaluation.num_prompts}; choose 1 to "
            f"task.num_heldout ({task.num_heldout})"
        )
    if not MIN_LENGTH <= task.max_length < NUM_COUNTERS:
        yield (
            f"task.max_length is {task.max_length}; problems count from {MIN_LENGTH} "
            f"to {NUM_COUNTERS - 1}, choose one in between"
        )
        return
    size = task_size(task)
    if size.vocab_size > config.model.vocab_size:
        yield (
            f"model.vocab_size is {config.model.vocab_size}, task {task.name!r} has "
            f"{size.vocab_size} tokens; raise model.vocab_size"
        )
    if size.max_prompt_tokens > config.engine.max_prompt_tokens:
        yield (
            f"engine.max_prompt_tokens is {config.engine.max_prompt_tokens}, the longest prompt of "
            f"task {task.name!r} has {size.max_prompt_tokens} tokens; raise "
            "engine.max_prompt_tokens or lower task.max_length"
        )
    if size.max_response_tokens > config.sampling.max_response_tokens:
        yield (
            f"sampling.max_response_tokens is {config.sampling.max_response_tokens}, the longest "
            f"answer of task {task.name!r} has {size.max_response_tokens} tokens; raise "
            "sampling.max_response_tokens or lower task.max_length"
        )


def _sampling(config: RunConfig) -> Iterator[str]:
    for section in ("sampling", "evaluation"):
        top_k = getattr(config, section).top_k
        if top_k > config.model.vocab_size:
            yield (
                f"{section}.top_k is {top_k}; choose 0 (keeps all) to model.vocab_size "
                f"({config.model.vocab_size})"
            )


def _responses(config: RunConfig) -> Iterator[str]:
    algorithm, prompts = config.algorithm, config.learner.prompts_per_step
    if algorithm.group_size > MAX_GROUP:
        yield (
            f"algorithm.group_size is {algorithm.group_size:,}; the limit is {MAX_GROUP} responses "
            "to a prompt, for each has a number of 32 bits: lower it"
        )
    factor = algorithm.dynamic_sampling_factor if algorithm.dynamic_sampling else 1
    most = int(prompts * factor) * algorithm.group_size
    if most > MAX_TRAINED:
        tried = f" x algorithm.dynamic_sampling_factor ({factor:g})" if factor != 1 else ""
        yield (
            f"learner.prompts_per_step x algorithm.group_size{tried} is {most:,}; the limit is "
            f"{MAX_TRAINED:,} responses in a step, lower one of them"
        )


def _manager(config: RunConfig) -> Iterator[str]:
    manager = config.manager
    if 3 * manager.renew_seconds >= manager.lease_seconds:  # what is echoed is one older
        yield (
            f"manager.renew_seconds is {manager.renew_seconds}; a lease of "
            f"{manager.lease_seconds} s (manager.lease_seconds) must outlive three renewals, "
            f"choose less than {manager.lease_seconds / 3:g}"
        )
    if manager.longest_lease_seconds < manager.lease_seconds:
        yield (
            f"manager.longest_lease_seconds is {manager.longest_lease_seconds}, less than "
            f"manager.lease_seconds ({manager.lease_seconds}); choose at least as much"
        )
    if manager.progress_seconds < manager.lease_seconds:
        yield (
            f"manager.progress_seconds is {manager.progress_seconds}, less than "
            f"manager.lease_seconds ({manager.lease_seconds}); choose more than the longest "
            "dispatch takes"
        )
    if manager.port and manager.port == manager.weights_port:
        yield f"manager.port and manager.weights_port are both {manager.port}; choose two ports"


def _weights(config: RunConfig) -> Iterator[str]:
    if config.weights.store and (objection := objection_to_url(config.weights.store)):
        yield f"weights.store {objection}"
    if config.weights.store and config.weights.store == config.checkpoint.copy_to:
        yield "weights.store and checkpoint.copy_to are the same; choose another for one of them"
    if config.weights.source == "store" and not config.weights.store:
        yield "weights.source is 'store' and weights.store is ''; name the store"
    if not all(back > 0 for back in config.weights.deltas):
        yield f"weights.deltas is {config.weights.deltas}; older versions are 1 or more before"


def _fleet(config: RunConfig) -> Iterator[str]:
    yield from pool_mistakes(config.fleet, _fleet_alone)
    if not config.fleet.pools:
        yield from _fleet_alone(config.fleet)


def _fleet_alone(fleet: FleetConfig) -> Iterator[str]:
    """Yield a line per mistake in a fleet with one provider."""
    if fleet.provider == "none" and (fleet.trace or fleet.chaos.enabled):
        yield (
            "fleet.trace and fleet.chaos need servers that the run started itself; "
            "set fleet.provider to 'local', or trace to '' and chaos.enabled to False"
        )
    if fleet.options and not isinstance(fleet.chosen_provider, Outside):
        yield (
            f"fleet.options is {fleet.options}, and fleet.provider {fleet.provider!r} has settings "
            f"of its own (fleet.{fleet.provider}): leave them out, or name another package's"
        )
    if fleet.provider == "command":
        yield from command_mistakes(fleet.command)
    if fleet.provider == "slurm":
        yield from slurm_mistakes(fleet.slurm)
    if fleet.provider == "kubernetes":
        yield from kubernetes_mistakes(
            fleet.kubernetes,
            notice_signal=fleet.notice_signal,
            notice_seconds=fleet.notice_seconds,
        )
    if fleet.provider == "ec2":
        yield from ec2_mistakes(fleet.ec2)
    if fleet.provider == "skypilot":
        yield from skypilot_mistakes(fleet.skypilot)


def _observe(config: RunConfig) -> Iterator[str]:
    observe = config.observe
    for name in observe.trackers:
        if name not in TRACKERS:
            hint = suggestion(name, TRACKERS)
            yield f"observe.trackers has {name!r}, which does not exist; {hint}"
    yield from host_mistakes(observe.page.allowed_hosts, "observe.page.allowed_hosts")
    if len(set(observe.trackers)) < len(observe.trackers):
        yield f"observe.trackers is {observe.trackers}; name each of them once"
    if "wandb" in observe.trackers and not observe.wandb.project:
        yield "observe.wandb.project is ''; name the project that the run belongs to"
    if "mlflow" in observe.trackers and not observe.mlflow.experiment:
        yield "observe.mlflow.experiment is ''; name the experiment that the run belongs to"
    if "@" in observe.mlflow.uri.partition("://")[2].partition("/")[0]:
        yield (
            "observe.mlflow.uri has a name or password in it, which every record of the "
            "configuration would show; give them by MLFLOW_TRACKING_USERNAME and _PASSWORD"
        )
    if observe.profile_step >= max(1, config.num_steps):
        yield (
            f"observe.profile_step is {observe.profile_step}; the last step is "
            f"{config.num_steps - 1} (num_steps - 1), 0 profiles none"
        )


def _evaluation(config: RunConfig) -> Iterator[str]:
    evaluation = config.evaluation
    if evaluation.samples > 1 and not evaluation.temperature:
        yield (
            f"evaluation.samples is {evaluation.samples} and evaluation.temperature is 0; greedy "
            "responses to a prompt are all equal: raise the temperature, or take 1 sample"
        )
    if evaluation.keep_best and not evaluation.every_steps:
        yield (
            "evaluation.keep_best is True and evaluation.every_steps is 0; nothing says which "
            "checkpoint is the best: choose how often to evaluate, or set it to False"
        )
    if config.checkpoint.copy_to and (objection := objection_to_url(config.checkpoint.copy_to)):
        yield f"checkpoint.copy_to {objection}"
    every = config.checkpoint.every_steps
    if config.checkpoint.keep_every % every:
        yield (
            f"checkpoint.keep_every is {config.checkpoint.keep_every}, not a multiple of "
            f"checkpoint.every_steps ({every}); change one of them"
        )
    if evaluation.keep_best and evaluation.every_steps % every:
        yield (
            f"evaluation.keep_best is True and evaluation.every_steps is {evaluation.every_steps}, "
            f"not a multiple of checkpoint.every_steps ({every}); what is evaluated would have no "
            "checkpoint: change one of them"
        )
    lag, keep = config.algorithm.lag, config.checkpoint.keep
    if evaluation.keep_best and lag // every >= keep:
        yield (
            f"evaluation.keep_best is True, algorithm.lag {lag} and checkpoint.keep {keep}; a "
            "version is evaluated beside the batch that it samples, when its checkpoint would be "
            f"gone: set checkpoint.keep to {lag // every + 1} or more"
        )
    most = evaluation.num_prompts * evaluation.samples
    if most > MAX_EVALUATED:
        yield (
            f"evaluation.num_prompts x evaluation.samples is {most:,}; the limit is "
            f"{MAX_EVALUATED:,} responses, lower one of them"
        )


def _rest(config: RunConfig) -> Iterator[str]:
    if config.compile_cache_dir and Path(config.compile_cache_dir).expanduser().is_file():
        yield f"compile_cache_dir {config.compile_cache_dir!r} is a file; name a folder"
