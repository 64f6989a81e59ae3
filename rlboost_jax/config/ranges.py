"""The range of every field that has one by itself, as tables."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rlboost_jax.config.data_presets import ANSWER_FORMATS, DATA_PRESETS
from rlboost_jax.config.errors import suggestion
from rlboost_jax.config.presets import PRESETS
from rlboost_jax.config.task_sizes import DATASET, TASK_SIZES
from rlboost_jax.messages import MAX_NOTICE_SECONDS

MAX_LEASE_SECONDS: Final = 2.0
MAX_SEED: Final = 2**31 - 1
MAX_POSITIONS: Final = 2**18  # tokens of a slot; see rlboost_jax/models/rope.py
MAX_STOP_IDS: Final = 8  # that an engine's slot has room for
DTYPES: Final = ("float32", "bfloat16", "float16")
KV_DTYPES: Final = (*DTYPES, "float8_e4m3fn")
NOTICES: Final = ("auto", "none", "aws", "gcp", "azure")
NOTICE_SIGNALS: Final = ("SIGTERM", "SIGUSR1", "SIGUSR2")
FAMILIES: Final = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "gemma2", "gemma3_text")
ROPE_SCALINGS: Final = ("", "linear", "llama3", "yarn")
TRACKERS: Final = ("tensorboard", "wandb")
ATTENTION_FOR_GPU: Final = ("mosaic_gpu", "triton")
ATTENTION: Final = ("auto", "reference", "xla", "cpu", *ATTENTION_FOR_GPU)

AT_LEAST: Final[Mapping[str, int]] = {
    "seed": 0,
    "num_steps": 1,
    "model.vocab_size": 1,
    "model.embed_dim": 1,
    "model.num_layers": 1,
    "model.num_query_heads": 1,
    "model.num_key_heads": 1,
    "model.head_dim": 2,
    "model.hidden_dim": 1,
    "model.query_scalar": 0,
    "model.attention_soft_cap": 0,
    "model.final_soft_cap": 0,
    "model.sliding_window": 0,
    "model.local_rope_theta": 0,
    "model.num_experts": 0,
    "model.experts_per_token": 0,
    "model.expert_dim": 0,
    "model.lora.rank": 0,
    "task.num_heldout": 1,
    "data.heldout_share": 0,
    "data.max_prompt_tokens": 0,
    "rewards.workers": 1,
    "rewards.memory_mb": 1,
    "rewards.tolerated_failures": 0,
    "warmup.max_updates": 0,
    "warmup.target_loss": 0,
    "warmup.habit_updates": 0,
    "warmup.worked_fraction": 0,
    "warmup.habit_worked_fraction": 0,
    "algorithm.group_size": 1,
    "algorithm.gae_lambda": 0,
    "algorithm.dual_clip": 0,
    "algorithm.kl_coefficient": 0,
    "algorithm.correction_low": 0,
    "algorithm.overlong_penalty": 0,
    "algorithm.dynamic_sampling_factor": 1,
    "algorithm.mini_batches": 1,
    "algorithm.epochs": 1,
    "algorithm.value_clip": 0,
    "sampling.top_k": 0,
    "sampling.max_response_tokens": 1,
    "learner.prompts_per_step": 1,
    "learner.micro_batch_prompts": 1,
    "learner.pack_rows": 1,
    "learner.row_tokens": 0,
    "learner.row_lengths": 1,
    "learner.pack_tokens": 0,
    "learner.schedule_warmup_steps": 0,
    "learner.weight_decay": 0,
    "learner.guard_gradient_norm": 0,
    "learner.guard_kl": 0,
    "learner.device_gb": 0,
    "learner.beta1": 0,
    "learner.beta2": 0,
    "learner.tolerated_gap": 0,
    "engine.slots": 1,
    "engine.page_size": 1,
    "engine.num_pages": 0,
    "engine.max_prompt_tokens": 1,
    "engine.steps_per_dispatch": 1,
    "engine.tensor_parallel": 1,
    "manager.port": 0,
    "manager.max_pending": 0,
    "weights.keep_versions": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": 1,
    "fleet.max_instances": 0,
    "fleet.price_per_hour": 0,
    "fleet.reserved_price_per_hour": 0,
    "fleet.egress_dollars_per_gb": 0,
    "fleet.worth_per_hour": 0,
    "fleet.orphan_seconds": 0,
    "fleet.notice_seconds": 0,
    "manager.drain_seconds": 0,
    "fleet.chaos.seed": 0,
    "fleet.chaos.kills_per_minute": 0,
    "fleet.chaos.terms_per_minute": 0,
    "fleet.chaos.joins_per_minute": 0,
    "evaluation.every_steps": 0,
    "evaluation.num_prompts": 1,
    "evaluation.samples": 1,
    "evaluation.temperature": 0,
    "observe.samples_every_steps": 0,
    "observe.samples_prompts": 1,
    "observe.profile_step": 0,
}
WINDOWS: Final = ("paper", "model")
ROUTINGS: Final = ("pending", "speed")
SIZINGS: Final = ("fixed", "paper", "marginal")
ABOVE_ZERO: Final = (
    "model.rope_theta",
    "model.rope_factor",
    "model.lora.alpha",
    "model.rope_low_frequency_factor",
    "model.rope_high_frequency_factor",
    "model.rope_original_positions",
    "model.rope_attention_factor",
    "model.norm_epsilon",
    "task.mean_length",
    "rewards.time_limit_seconds",
    "warmup.learning_rate",
    "warmup.habit_learning_rate",
    "algorithm.clip_low",
    "algorithm.clip_high",
    "algorithm.discount",
    "algorithm.sapo_temperature_positive",
    "algorithm.sapo_temperature_negative",
    "algorithm.correction_high",
    "algorithm.overlong_band",
    "algorithm.critic_learning_rate",
    "sampling.temperature",  # greedy responses of a group are equal and teach nothing
    "sampling.top_p",
    "learner.learning_rate",
    "learner.max_gradient_norm",
    "engine.memory_fraction",
    "manager.lease_seconds",
    "manager.renew_seconds",
    "manager.progress_seconds",
    "manager.window_initial_seconds",
    "manager.window_eta",
    "fleet.trace_speed",
    "fleet.synthetic_lifetime_seconds",
    "fleet.synthetic_gap_seconds",
)
AT_MOST: Final[Mapping[str, float]] = {
    "seed": MAX_SEED,
    "data.heldout_share": 0.9,
    "rewards.tolerated_failures": 1,
    "warmup.worked_fraction": 1,
    "warmup.habit_worked_fraction": 1,
    "algorithm.clip_low": 1,
    "algorithm.discount": 1,
    "algorithm.gae_lambda": 1,
    "algorithm.overlong_band": 1,
    "sampling.top_p": 1,
    "learner.row_lengths": 8,  # each is compiled
    "learner.beta1": 0.99999,
    "learner.beta2": 0.99999,
    "engine.memory_fraction": 1,
    "manager.port": 65535,
    "manager.lease_seconds": MAX_LEASE_SECONDS,  # a silent server is lost by then
    "fleet.notice_seconds": MAX_NOTICE_SECONDS,
}
ONE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "model.dtype": DTYPES,
    "model.family": FAMILIES,
    "model.rope_scaling": ROPE_SCALINGS,
    "model.activation": ("silu", "gelu_tanh"),
    "task.name": (*TASK_SIZES, DATASET),
    "data.preset": ("", *DATA_PRESETS),
    "data.format": ("auto", "jsonl", "parquet", "arrayrecord", "huggingface"),
    "data.answer_format": ANSWER_FORMATS,
    "data.bad_rows": ("skip", "error"),
    "data.chat": ("auto", "always", "never"),
    "rewards.sandbox": ("required", "best_effort"),
    "algorithm.name": tuple(PRESETS),
    "algorithm.advantage": ("group_std", "group_mean", "leave_one_out", "return", "gae"),
    "algorithm.deviation": ("population", "sample"),
    "algorithm.old_policy": ("behaviour", "recomputed"),
    "algorithm.ratio_level": ("token", "sequence", "sequence_token"),
    "algorithm.surrogate": ("clip", "cispo", "sapo", "reinforce"),
    "algorithm.loss_aggregation": ("token_mean", "sequence_mean", "sequence_sum", "constant"),
    "algorithm.kl_estimator": ("k1", "k2", "k3"),
    "algorithm.kl_placement": ("loss", "reward"),
    "algorithm.kl_gradient": ("own", "straight_through", "importance"),
    "algorithm.correction": ("none", "truncate", "mask", "reject"),
    "algorithm.correction_level": ("token", "sequence", "geometric"),
    "learner.schedule": ("constant", "linear", "cosine"),
    "learner.remat": ("none", "dots", "attention", "full"),
    "learner.moment_dtype": ("float32", "bfloat16"),
    "learner.moment_memory": ("device", "host"),
    "learner.attention": ("auto", "paged", "dense", "chunked", "triton", "cudnn"),
    "learner.experts": ("auto", "xla", "blocks", "mosaic_gpu"),
    "engine.attention": ATTENTION,
    "engine.kv_dtype": KV_DTYPES,
    "weights.rollout_dtype": DTYPES,
    "weights.source": ("auto", "directory", "http"),
    "manager.window": WINDOWS,
    "fleet.provider": ("local", "none"),
    "manager.routing": ROUTINGS,
    "fleet.sizing": SIZINGS,
    "fleet.notices": NOTICES,
    "fleet.notice_signal": NOTICE_SIGNALS,
    "observe.wandb.mode": ("online", "offline"),
}


FINITE: Final = ("rewards.fallback",)


def out_of_range(config: Any, section: str = "") -> Iterator[str]:
    """One line per field with a value that cannot be: the value and what to choose.

    Args:
        config: a RunConfig, or what has the section.
        section: such as "model."; "" for all.
    """

    def values(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        return ((name, _field(config, name)) for name in names if name.startswith(section))

    for name, value in values(AT_LEAST):
        if not AT_LEAST[name] <= value < math.inf:
            yield f"{name} is {value}; choose {AT_LEAST[name]} or more"
    for name, value in values(ABOVE_ZERO):
        if not 0 < value < math.inf:
            yield f"{name} is {value}; choose more than 0"
    for name, value in values(AT_MOST):
        if not value <= AT_MOST[name]:
            yield f"{name} is {value}; choose {AT_MOST[name]} or less"
    for name, value in values(FINITE):
        if not math.isfinite(value):
            yield f"{name} is {value}; choose a number"
    for name, value in values(ONE_OF):
        if value not in (choices := ONE_OF[name]):
            yield f"{name} {value!r} does not exist; {suggestion(value, choices)}"


def _field(config: Any, name: str) -> Any:
    value: Any = functools.reduce(getattr, name.split("."), config)
    return value
