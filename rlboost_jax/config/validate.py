"""Every check of a configuration, before the first device is touched.

Each check yields one line per mistake: the value, the limit, the setting to change.
"""

import difflib
import importlib.util
import ipaddress
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from rlboost_jax.config.combinations import of_algorithm
from rlboost_jax.config.errors import ConfigError
from rlboost_jax.config.memory import pages_per_slot
from rlboost_jax.config.ranges import MAX_POSITIONS, TRACKERS, out_of_range
from rlboost_jax.config.records import ATTENTION_TARGETS, LORA_TARGETS, ModelConfig, RunConfig
from rlboost_jax.config.task_sizes import DATASET, MIN_LENGTH, NUM_COUNTERS, task_size
from rlboost_jax.config.traces import read_trace
from rlboost_jax.config.validate_data import dataset_mistakes, leftovers
from rlboost_jax.messages import FIRST_HELDOUT

ROW_CLASS: Final = 16  # row counts whose matmuls have the same bits are multiples of this
# A moment decays by 1 - beta each update. Rounded to bfloat16, whose last digit is worth up to
# 1/128 of a number, one that decays by less than half of that would stay as it is for ever.
MAX_BETA_ROUNDED: Final = 0.99
MIN_TOKEN_ROWS: Final = 64  # … and at least this many
MAX_TRAINED: Final = 2**19  # responses of one batch; half of what the manager takes of a step
MAX_EVALUATED: Final = 2**19  # responses of one evaluation; the other half
# Responses are numbered group by group, those of the last held-out prompt last, in 32 bits.
MAX_GROUP: Final = 2**32 // (FIRST_HELDOUT + MAX_EVALUATED)
OPTIONAL: Final = ("wandb",)  # trackers with an extra of their own


def check(config: RunConfig) -> None:
    """Raise ConfigError with one line per mistake."""
    mistakes = list(out_of_range(config))
    if not mistakes:  # the checks of fields against each other may count on the ranges
        checks = (
            *(_lora, _task, _sampling, of_algorithm, _responses, _learner),
            *(_engine, _manager, _fleet, _observe, _evaluation, _rest),
        )
        mistakes = [*_model(config.model), *(m for fields in checks for m in fields(config))]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def check_model(model: ModelConfig) -> None:
    """The same for an architecture alone."""
    mistakes = list(out_of_range(SimpleNamespace(model=model), "model.")) or list(_model(model))
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def check_files(config: RunConfig) -> None:
    """Raise ConfigError where a file or a library that the configuration names cannot be used."""
    if config.fleet.trace not in ("", "synthetic"):
        read_trace(config.fleet.trace)
    for name in config.observe.trackers:
        if name in OPTIONAL and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"observe.trackers has {name!r}, which is not installed; give "
                f"`pip install rlboost-jax[{name}]` or take it out"
            )


def _model(model: ModelConfig) -> Iterator[str]:
    if model.num_query_heads % model.num_key_heads:
        yield (
            f"model.num_query_heads is {model.num_query_heads}, not a multiple of "
            f"model.num_key_heads ({model.num_key_heads}); change one of them"
        )
    if model.head_dim % 2:
        yield f"model.head_dim is {model.head_dim}; rotary positions need an even number"
    pattern = model.attention_pattern
    if not pattern or set(pattern) - set("GL"):
        yield f'model.attention_pattern is {pattern!r}; write "G" and "L", such as "LLLLLG"'
    elif ("L" in pattern) != (model.sliding_window > 0):
        yield (
            f"model.sliding_window is {model.sliding_window} and model.attention_pattern "
            f'{pattern!r}; layers "L" need a window of at least 1 token, and there is none without'
        )
    low, high = model.rope_low_frequency_factor, model.rope_high_frequency_factor
    if model.rope_scaling in ("llama3", "yarn") and not low < high:
        yield (
            f"model.rope_low_frequency_factor is {low}; choose less than "
            f"model.rope_high_frequency_factor ({high})"
        )
    if model.rope_attention_factor != 1 and model.rope_scaling != "yarn":
        yield (
            f"model.rope_attention_factor is {model.rope_attention_factor}, which belongs to "
            f"rope_scaling 'yarn' and not to {model.rope_scaling!r}; leave it at 1"
        )
    if model.num_experts:
        if not 1 <= model.experts_per_token <= model.num_experts:
            yield (
                f"model.experts_per_token is {model.experts_per_token}; choose 1 to "
                f"model.num_experts ({model.num_experts})"
            )
        if model.expert_dim < 1:
            yield f"model.expert_dim is {model.expert_dim}; experts need a width of at least 1"


def _lora(config: RunConfig) -> Iterator[str]:
    model, lora = config.model, config.model.lora
    if not lora.rank:
        return
    if not lora.targets:
        yield f"model.lora.targets is empty; name some of {', '.join(LORA_TARGETS)}"
    if len(set(lora.targets)) < len(lora.targets):
        yield f"model.lora.targets is {lora.targets}; name each of them once"
    for name in lora.targets:
        if name not in LORA_TARGETS:
            yield (
                f"model.lora.targets has {name!r}, which can have no adapter; known: "
                f"{', '.join(LORA_TARGETS)}"
            )
        elif model.num_experts and name not in ATTENTION_TARGETS:
            yield (
                f"model.lora.targets has {name!r}, but the feed-forward layers are experts, which "
                f"can have no adapter: choose from {', '.join(ATTENTION_TARGETS)}"
            )


def _task(config: RunConfig) -> Iterator[str]:
    task = config.task
    if task.name == DATASET:
        yield from dataset_mistakes(config)
        return
    yield from leftovers(config)
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
    sampling = config.sampling
    if sampling.top_k > config.model.vocab_size:
        yield (
            f"sampling.top_k is {sampling.top_k}; choose 0 (keeps all) to model.vocab_size "
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


def _learner(config: RunConfig) -> Iterator[str]:
    learner = config.learner
    if learner.prompts_per_step % learner.micro_batch_prompts:
        yield (
            f"learner.prompts_per_step is {learner.prompts_per_step}, not a multiple of "
            f"learner.micro_batch_prompts ({learner.micro_batch_prompts}); change one of them"
        )
    if min(learner.mesh) < 1:
        yield f"learner.mesh is {learner.mesh}; every axis has at least 1 device"
    elif not learner.pack_tokens and learner.pack_rows % (learner.mesh[0] * learner.mesh[1]):
        yield (
            f"learner.pack_rows is {learner.pack_rows}, not a multiple of data * fsdp "
            f"({learner.mesh[0]} * {learner.mesh[1]}) in learner.mesh; change one of them"
        )
    if learner.row_tokens and learner.row_tokens < config.slot_tokens:
        yield (
            f"learner.row_tokens is {learner.row_tokens}, the longest prompt plus response has "
            f"{config.slot_tokens} (engine.max_prompt_tokens + sampling.max_response_tokens); "
            "raise it, or 0 takes just that"
        )
    if 0 < learner.pack_tokens < config.row_tokens:
        yield (
            f"learner.pack_tokens is {learner.pack_tokens}, one row has {config.row_tokens} "
            "(learner.row_tokens, or the longest prompt plus response); raise it, or 0 takes "
            "learner.pack_rows"
        )
    if config.row_tokens < 2 ** (learner.row_lengths - 1):
        yield (
            f"learner.row_lengths is {learner.row_lengths}; a row of {config.row_tokens} tokens "
            "cannot be halved so often: lower it"
        )
    if learner.guard_kl and not config.algorithm.kl_coefficient:
        yield (
            f"learner.guard_kl is {learner.guard_kl}; it is of the KL to the starting model, which "
            "is kept only where algorithm.kl_coefficient is above 0: raise that, or set it to 0"
        )
    if learner.attention == "paged" and math.prod(learner.mesh) > 1:
        yield (
            f"learner.attention is 'paged' and learner.mesh {learner.mesh}; the engine's kernel "
            "would gather what is sharded: take 'dense' or 'auto', or one device"
        )
    if learner.moment_dtype != "float32":
        for name in ("beta1", "beta2"):
            if getattr(learner, name) > MAX_BETA_ROUNDED:
                yield (
                    f"learner.{name} is {getattr(learner, name)} and learner.moment_dtype "
                    f"{learner.moment_dtype!r}; changes smaller than its last digit would be lost "
                    f"to rounding: choose at most {MAX_BETA_ROUNDED}, or float32"
                )
    if learner.schedule_warmup_steps > config.num_steps:
        yield (
            f"learner.schedule_warmup_steps is {learner.schedule_warmup_steps}; choose 0 to "
            f"num_steps ({config.num_steps})"
        )


def _engine(config: RunConfig) -> Iterator[str]:
    engine = config.engine
    in_class = engine.token_rows >= MIN_TOKEN_ROWS and engine.token_rows % ROW_CLASS == 0
    if config.deterministic and not in_class:
        yield (
            f"engine.token_rows is {engine.token_rows}; equal bits need a multiple of {ROW_CLASS}, "
            f"at least {MIN_TOKEN_ROWS}; or set deterministic to False"
        )
    if config.slot_tokens > MAX_POSITIONS:
        yield (
            f"engine.max_prompt_tokens and sampling.max_response_tokens add up to "
            f"{config.slot_tokens}; the model has {MAX_POSITIONS} positions, lower one of them"
        )
    yield from _tensor_parallel(config)
    if engine.slots > engine.token_rows:
        yield (
            f"engine.slots is {engine.slots}, more than engine.token_rows ({engine.token_rows}); "
            "every slot decodes one row, so lower slots or raise token_rows"
        )
    needed = pages_per_slot(engine, config.slot_tokens)
    if 0 < engine.num_pages < needed:
        yield (
            f"engine.num_pages is {engine.num_pages}, one rollout of {config.slot_tokens} tokens "
            f"needs {needed}; raise it, or 0 gives every slot its own"
        )


def _tensor_parallel(config: RunConfig) -> Iterator[str]:
    devices, model, (_, fsdp, tensor) = (
        config.engine.tensor_parallel,
        config.model,
        config.learner.mesh,
    )
    hidden = "num_experts" if model.num_experts else "hidden_dim"
    for name in ("num_query_heads", "num_key_heads", hidden, "vocab_size"):
        if (count := getattr(model, name)) % devices:
            yield (
                f"engine.tensor_parallel is {devices}, which does not divide model.{name} "
                f"({count}); choose another number of devices"
            )
    if devices > fsdp * tensor:
        yield (
            f"engine.tensor_parallel is {devices}, and a slice of learner.mesh has "
            f"{fsdp * tensor} devices (fsdp * tensor) for an engine of its own: lower it"
        )


def _manager(config: RunConfig) -> Iterator[str]:
    manager = config.manager
    if 3 * manager.renew_seconds >= manager.lease_seconds:  # what is echoed is one older
        yield (
            f"manager.renew_seconds is {manager.renew_seconds}; a lease of "
            f"{manager.lease_seconds} s (manager.lease_seconds) must outlive three renewals, "
            f"choose less than {manager.lease_seconds / 3:g}"
        )
    if manager.progress_seconds < manager.lease_seconds:
        yield (
            f"manager.progress_seconds is {manager.progress_seconds}, less than "
            f"manager.lease_seconds ({manager.lease_seconds}); choose more than the longest "
            "dispatch takes"
        )
    if not config.fleet.tls and not _is_loopback(manager.host):
        yield (
            f"manager.host is {manager.host!r}, which other hosts reach, and fleet.tls is False: "
            "secrets and weights would cross the network for anyone to read; set fleet.tls to True"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fleet(config: RunConfig) -> Iterator[str]:
    fleet = config.fleet
    if fleet.provider == "none" and (fleet.trace or fleet.chaos.enabled):
        yield (
            "fleet.trace and fleet.chaos need servers that the run started itself; "
            "set fleet.provider to 'local', or trace to '' and chaos.enabled to False"
        )


def _observe(config: RunConfig) -> Iterator[str]:
    observe = config.observe
    for name in observe.trackers:
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TRACKERS)}"
            yield f"observe.trackers has {name!r}, which does not exist; {hint}"
    if len(set(observe.trackers)) < len(observe.trackers):
        yield f"observe.trackers is {observe.trackers}; name each of them once"
    if "wandb" in observe.trackers and not observe.wandb.project:
        yield "observe.wandb.project is ''; name the project that the run belongs to"
    if observe.profile_step >= config.num_steps:
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
    every = config.checkpoint.every_steps
    if evaluation.keep_best and evaluation.every_steps % every:
        yield (
            f"evaluation.keep_best is True and evaluation.every_steps is {evaluation.every_steps}, "
            f"not a multiple of checkpoint.every_steps ({every}); what is evaluated would have no "
            "checkpoint: change one of them"
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
