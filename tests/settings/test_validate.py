import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest
from ml_collections import ConfigDict
from rlboost_kernels import available_implementations

from configs import base, quickstart, tiny
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.identities import MOST_TRAINED
from rlboost_jax.settings.config_loading import run_config, run_config_from_dict, to_dict
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.engine_config import EngineAttention
from rlboost_jax.settings.model_config import LoraConfig
from rlboost_jax.settings.validation.run_checks import MAX_GROUP, MAX_TRAINED, check_files


def changed(changes: dict[str, object]) -> ConfigDict:
    config = base.get_config()
    config.update_from_flattened_dict(changes)
    return config


def mistakes(changes: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        run_config(changed(changes))
    return str(caught.value).splitlines()


@pytest.mark.parametrize("module", [base, quickstart, tiny])
def test_the_files_in_configs_pass(module: object) -> None:
    run_config(module.get_config())


def test_adapters_are_on_all_matrices_unless_it_says_which() -> None:
    config = changed({"model.lora.rank": 4})
    assert run_config(config).model.lora == LoraConfig(rank=4)
    targets = ("o_proj", "k_proj")
    experts = {"model.num_experts": 4, "model.experts_per_token": 2, "model.expert_dim": 8}
    model = run_config(changed({**experts, "model.lora.rank": 4, "model.lora.targets": targets}))
    assert [model.model.adapts(name) for name in ("k_proj", "q_proj")] == [True, False]
    assert not run_config(base.get_config()).model.adapts("k_proj")


TEACHERS = ({"source": "mine/large"},)
SCORED_BY_SERVERS = {"distillation.teachers": TEACHERS, "distillation.scored_by": "servers"}

# What is wrong with each, and every field that the line must name.
WRONG = [
    ({"engine.token_rows": 72}, "72", ["engine.token_rows"]),
    ({"engine.token_rows": 48, "engine.slots": 8}, "48", ["engine.token_rows"]),
    ({"engine.slots": 65}, "65", ["engine.slots", "engine.token_rows"]),
    ({"engine.num_pages": 12}, "12", ["engine.num_pages"]),
    ({"engine.memory_fraction": 0.0}, "0.0", ["engine.memory_fraction"]),
    ({"engine.memory_fraction": 1.1}, "1.1", ["engine.memory_fraction"]),
    (
        {"learner.micro_batch_prompts": 7},
        "7",
        ["learner.prompts_per_step", "learner.micro_batch_prompts"],
    ),
    (
        {"algorithm.turn_advantages": "turn", "algorithm.name": "ppo"},
        "'turn'",
        ["algorithm.turn_advantages", "algorithm.advantage"],
    ),
    (
        {"algorithm.turn_advantages": "both", "algorithm.advantage": "pass_at_k"},
        "'both'",
        ["algorithm.turn_advantages", "algorithm.advantage"],
    ),
    (
        {"algorithm.turn_advantages": "turn", "algorithm.name": "gspo"},
        "'sequence'",
        ["algorithm.turn_advantages", "algorithm.ratio_level"],
    ),
    (
        {"algorithm.turn_discount": 0.9},
        "0.9",
        ["algorithm.turn_discount", "algorithm.turn_advantages"],
    ),
    (
        {"algorithm.lag": 1, "algorithm.old_policy": "recomputed"},
        "'recomputed'",
        ["algorithm.lag", "algorithm.old_policy", "algorithm.correction"],
    ),
    (
        {"algorithm.lag": 1, "algorithm.name": "rloo"},
        "'reinforce'",
        ["algorithm.lag", "algorithm.surrogate", "algorithm.correction"],
    ),
    (
        {"algorithm.lag": 2, "evaluation.keep_best": True},
        "2",
        ["evaluation.keep_best", "algorithm.lag", "checkpoint.keep"],
    ),
    (
        {"num_steps": 0, "warmup.max_updates": 0},
        "0",
        ["num_steps", "warmup.source"],
    ),
    ({"warmup.source": "rows.jsonl"}, "'clock'", ["warmup.source", "task.name", "data.tokenizer"]),
    ({"learner.mesh": (2, 4, 1)}, "4", ["learner.pack_rows", "learner.mesh"]),
    ({"learner.mesh": (1, 0, 1)}, "0", ["learner.mesh"]),
    (
        {"learner.moment_dtype": "bfloat16", "learner.beta1": 0.9, "learner.beta2": 0.999},
        "0.999",
        ["learner.beta2", "learner.moment_dtype"],
    ),
    ({"learner.pack_tokens": 207}, "207", ["learner.pack_tokens", "learner.row_tokens"]),
    ({"learner.row_lengths": 9}, "9", ["learner.row_lengths"]),
    ({"learner.row_tokens": 207}, "207", ["learner.row_tokens", "sampling.max_response_tokens"]),
    ({"learner.schedule_warmup_steps": 101}, "101", ["learner.schedule_warmup_steps", "num_steps"]),
    ({"model.num_key_heads": 3}, "3", ["model.num_query_heads", "model.num_key_heads"]),
    ({"model.head_dim": 33}, "33", ["model.head_dim"]),
    ({"model.attention_pattern": ""}, "''", ["model.attention_pattern"]),
    ({"model.attention_pattern": "GW"}, "'GW'", ["model.attention_pattern"]),
    ({"model.attention_pattern": "LG"}, "0", ["model.sliding_window", "model.attention_pattern"]),
    ({"model.sliding_window": 9}, "9", ["model.sliding_window", "model.attention_pattern"]),
    (
        {"model.rope_scaling": "llama3", "model.rope_low_frequency_factor": 5.0},
        "5.0",
        ["model.rope_low_frequency_factor", "model.rope_high_frequency_factor"],
    ),
    ({"model.rope_scaling": "dynamic"}, "'dynamic'", ["model.rope_scaling"]),
    ({"model.activation": "gelu"}, "'gelu'", ["model.activation"]),
    ({"model.family": "qwen4"}, "'qwen4'", ["model.family"]),
    (
        {"model.num_experts": 4, "model.experts_per_token": 5, "model.expert_dim": 8},
        "5",
        ["model.experts_per_token", "model.num_experts"],
    ),
    ({"model.num_experts": 4, "model.experts_per_token": 2}, "0", ["model.expert_dim"]),
    (
        {
            "model.num_experts": 300,
            "model.experts_per_token": 200,
            "model.expert_dim": 8,
            "model.num_layers": 64,
            "sampling.max_response_tokens": 3000,
        },
        "25600 bytes",
        ["algorithm.routing_replay", "sampling.max_response_tokens"],
    ),
    ({"model.lora.rank": -1}, "-1", ["model.lora.rank"]),
    ({"model.lora.rank": 4, "model.lora.alpha": 0.0}, "0.0", ["model.lora.alpha"]),
    ({"model.lora.rank": 4, "model.lora.targets": ()}, "empty", ["model.lora.targets", "q_proj"]),
    (
        {"model.lora.rank": 4, "model.lora.targets": ("q_proj", "embed_tokens")},
        "'embed_tokens'",
        ["model.lora.targets", "down_proj"],
    ),
    (
        {"model.lora.rank": 4, "model.lora.targets": ("q_proj", "q_proj")},
        "('q_proj', 'q_proj')",
        ["model.lora.targets"],
    ),
    (
        {
            **{"model.num_experts": 4, "model.experts_per_token": 2, "model.expert_dim": 8},
            **{"model.lora.rank": 4, "model.lora.targets": ("v_proj", "up_proj")},
        },
        "'up_proj'",
        ["model.lora.targets", "experts", "o_proj"],
    ),
    ({"weights.deltas": (1, 0)}, "(1, 0)", ["weights.deltas"]),
    ({"weights.store": "bucket"}, "'bucket' is no address of a store", ["s3://BUCKET/PREFIX"]),
    ({"weights.source": "store"}, "weights.source is 'store'", ["weights.store"]),
    ({"checkpoint.copy_to": "s3://"}, "'s3://' is no address of a store", ["file:///FOLDER"]),
    ({"manager.lease_seconds": 2.5}, "2.5", ["manager.lease_seconds"]),
    ({"manager.renew_seconds": 1.0}, "1.0", ["manager.renew_seconds", "manager.lease_seconds"]),
    ({"manager.renew_seconds": 0.5}, "three renewals", ["manager.lease_seconds"]),
    ({"manager.progress_seconds": 1.4}, "1.4", ["manager.progress_seconds", "lease_seconds"]),
    ({"sampling.top_k": 113}, "113", ["sampling.top_k", "model.vocab_size"]),
    ({"data.stop_strings": ("</a>",)}, "('</a>',)", ["data.stop_strings", "task 'clock'"]),
    ({"evaluation.top_k": 113}, "113", ["evaluation.top_k", "model.vocab_size"]),
    ({"sampling.top_p": 0.0}, "0.0", ["sampling.top_p"]),
    ({"sampling.top_p": 1.1}, "1.1", ["sampling.top_p"]),
    ({"task.max_length": 96}, "96", ["task.max_length"]),
    ({"model.vocab_size": 111}, "111", ["model.vocab_size"]),
    ({"engine.max_prompt_tokens": 4}, "4", ["engine.max_prompt_tokens"]),
    (
        {"sampling.max_response_tokens": 182},
        "182",
        ["sampling.max_response_tokens", "task.max_length"],
    ),
    ({"task.name": "reversal"}, "8", ["engine.max_prompt_tokens", "task.max_length"]),
    ({"evaluation.num_prompts": 257}, "257", ["evaluation.num_prompts", "task.num_heldout"]),
    ({"algorithm.group_size": 911, "learner.prompts_per_step": 6}, "911", ["algorithm.group_size"]),
    (
        {"algorithm.group_size": 32, "learner.prompts_per_step": 16_398},
        "524,736",
        ["learner.prompts_per_step", "algorithm.group_size"],
    ),
    (
        {
            "algorithm.name": "dapo",
            "algorithm.group_size": 128,
            "algorithm.dynamic_sampling_factor": 4.0,
            "learner.prompts_per_step": 1_026,
        },
        "525,312",
        ["learner.prompts_per_step", "algorithm.dynamic_sampling_factor"],
    ),
    ({"fleet.provider": "none", "fleet.trace": "synthetic"}, "none", ["fleet.trace"]),
    ({"seed": -1}, "-1", ["seed"]),
    ({"sampling.temperature": 0.0}, "0.0", ["sampling.temperature"]),
    ({"engine.attention": "pallas"}, "pallas", ["engine.attention"]),
    ({"fleet.chaos.seed": -1}, "-1", ["fleet.chaos.seed"]),
    (
        {"sampling.max_response_tokens": 262_137},
        "262145",
        ["engine.max_prompt_tokens", "sampling.max_response_tokens"],
    ),
    (
        {"learner.attention": "paged", "learner.mesh": (2, 1, 1)},
        "paged",
        ["learner.attention", "learner.mesh"],
    ),
    ({"learner.attention": "cudnn"}, "cudnn", ["learner.attention", "deterministic"]),
    ({"observe.trackers": ("tensorbord",)}, "did you mean 'tensorboard'", ["observe.trackers"]),
    ({"observe.trackers": ("tensorboard",) * 2}, "once", ["observe.trackers"]),
    (
        {"observe.trackers": ("wandb",), "observe.wandb.project": ""},
        "''",
        ["observe.wandb.project"],
    ),
    ({"observe.wandb.mode": "on"}, "'on'", ["observe.wandb.mode"]),
    ({"observe.profile_step": 100}, "100", ["observe.profile_step", "num_steps"]),
    (
        {"engine.tensor_parallel": 3},
        "3, which does not divide",
        ["engine.tensor_parallel", "model.num_query_heads"],
    ),
    ({"engine.tensor_parallel": 2}, "has 1 devices", ["engine.tensor_parallel", "learner.mesh"]),
    ({"fleet.trace": "/no/such/trace.csv"}, "/no/such/trace.csv", ["fleet.trace"]),
    ({"distillation.form": "loss"}, "is loss without", ["distillation.teachers"]),
    ({"distillation.scored_by": "servers"}, "is servers without", ["distillation.teachers"]),
    (SCORED_BY_SERVERS | {"deterministic": False}, "may not", ["deterministic"]),
    (SCORED_BY_SERVERS | {"fleet.sizing": "marginal"}, "'marginal'", ["fleet.sizing"]),
    (SCORED_BY_SERVERS | {"fleet.max_instances": 1}, "takes 2", ["fleet.max_instances"]),
    (SCORED_BY_SERVERS | {"fleet.max_dollars": 9.0}, "wait forever", ["fleet.max_dollars"]),
    (
        SCORED_BY_SERVERS | {"fleet.max_dollars_per_hour": 5.0},
        "which cost $5.32 an hour",
        ["fleet.max_dollars_per_hour"],
    ),
    (
        {"distillation.teachers": TEACHERS, "algorithm.name": "reinforce_pp"},
        "or set distillation.form to 'loss'",
        ["algorithm.whiten"],
    ),
    (
        {"distillation.teachers": TEACHERS, "algorithm.name": "gspo"},
        "or set distillation.form to 'loss'",
        ["algorithm.ratio_level"],
    ),
    (
        {
            "distillation.teachers": TEACHERS,
            "distillation.form": "loss",
            "distillation.reward_weight": 0.5,
            "algorithm.name": "ppo",
        },
        "0.5, and algorithm.advantage 'gae'",
        ["distillation.reward_weight"],
    ),
]


@pytest.mark.parametrize(("changes", "value", "fields"), WRONG, ids=lambda v: str(v)[:50])
def test_a_mistake_is_a_line_with_value_and_fields(
    changes: dict[str, object], value: str, fields: list[str]
) -> None:
    if "fleet.provider" in changes:
        value = "local"  # the way out
    first = mistakes(changes)[0]
    assert value in first
    assert all(field in first for field in fields), first


def test_a_group_of_one_is_not_judged_as_a_group() -> None:
    """Every response would be the best of its group. PPO's groups are of one."""
    grouped = {"rewards.functions": ({"name": "my:best", "per": "group"},)}
    said = "rewards.functions[0] 'my:best' has per 'group'"
    assert any(said in line for line in mistakes({**grouped, "algorithm.name": "ppo"}))
    both = {**grouped, "algorithm.name": "ppo", "algorithm.group_size": 2}
    assert not any(said in line for line in mistakes(both))


@pytest.mark.parametrize("name", ["reinforce_pp", "gspo", "ppo"])
def test_with_the_kl_in_the_loss_any_algorithm_may_have_teachers(name: str) -> None:
    changes = {"distillation.teachers": TEACHERS, "distillation.weight": 0.5}
    run = run_config(changed({**changes, "distillation.form": "loss", "algorithm.name": name}))
    assert run.distillation.loss_weight == 0.5


def test_the_limits_themselves_pass() -> None:
    run_config(
        changed(
            {
                "engine.token_rows": 64,
                "engine.slots": 64,
                "engine.num_pages": 13,  # 208 tokens in pages of 16
                "learner.row_tokens": 208,
                "manager.lease_seconds": 2.0,
                "manager.renew_seconds": 0.666,
                "manager.progress_seconds": 2.0,
                "fleet.notice_seconds": 86_400.0,
                "sampling.max_response_tokens": 200,
                "sampling.top_k": 112,
                "evaluation.num_prompts": 256,
                "task.max_length": 95,
            }
        )
    )


def test_every_response_that_may_be_asked_for_has_a_number_of_its_own() -> None:
    """Engines draw noise by numbers of 32 bits; held-out prompts come after all others."""
    heldout = 2**19  # prompts, with one response to each
    assert (MOST_TRAINED + heldout) * MAX_GROUP <= 2**32 < (MOST_TRAINED + heldout) * 911
    assert MOST_TRAINED > MAX_TRAINED, "as many prompts as there may be"
    values = {"algorithm.group_size": MAX_GROUP, "learner.prompts_per_step": 6}
    run_config(changed(values))


def test_every_mistake_is_reported_at_once() -> None:
    changes = {"engine.token_rows": 72, "model.num_key_heads": 3, "engine.num_pages": 1}
    assert len(mistakes(changes)) == 3


def numbers(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, type]]:
    """Dotted names, and types, of all numbers of the base configuration, presets filled in."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, type(value)


MAY_BE_NEGATIVE = ("rewards.fallback",)


def impossible_numbers() -> Iterator[tuple[str, float]]:
    for name, kind in numbers(to_dict(run_config(base.get_config()))):
        if name not in MAY_BE_NEGATIVE:
            yield name, -1
        if kind is float:
            yield from ((name, math.nan), (name, math.inf))


def test_no_number_may_be_negative_or_endless() -> None:
    given = list(impossible_numbers())
    assert len(given) > 200
    assert not [each for each in given if not is_named(*each)]


def is_named(name: str, value: object) -> bool:
    """Whether a run of that value is refused in a line that begins with its name."""
    config = to_dict(run_config(base.get_config()))
    *sections, field = name.split(".")
    section = functools.reduce(dict.__getitem__, sections, config)
    section[field] = type(section[field])(value)
    try:
        run_config_from_dict(config)
    except ConfigError as error:
        return any(line.startswith(f"{name} ") for line in str(error).splitlines())
    return False


POSITIVE_NUMBERS = [
    "model.vocab_size",
    "model.embed_dim",
    "model.num_layers",
    "model.num_query_heads",
    "model.num_key_heads",
    "model.head_dim",
    "model.hidden_dim",
    "model.rope_theta",
    "model.norm_epsilon",
    "task.mean_length",
    "task.num_heldout",
    "warmup.source_epochs",
    "warmup.source_batch_tokens",
    "warmup.source_learning_rate",
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
    "sampling.temperature",
    "sampling.top_p",
    "sampling.max_response_tokens",
    "learner.prompts_per_step",
    "learner.micro_batch_prompts",
    "learner.pack_rows",
    "learner.learning_rate",
    "learner.max_gradient_norm",
    "engine.slots",
    "engine.page_size",
    "engine.max_prompt_tokens",
    "engine.steps_per_dispatch",
    "engine.tensor_parallel",
    "manager.lease_seconds",
    "manager.renew_seconds",
    "manager.progress_seconds",
    "manager.window_initial_seconds",
    "manager.window_eta",
    "weights.keep_versions",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "fleet.trace_speed",
    "fleet.synthetic_lifetime_seconds",
    "fleet.synthetic_gap_seconds",
    "evaluation.num_prompts",
]
NAMES = [
    "model.dtype",
    "task.name",
    "algorithm.name",
    "algorithm.loss_aggregation",
    "algorithm.advantage",
    "learner.schedule",
    "learner.attention",
    "engine.attention",
    "engine.kv_dtype",
    "weights.rollout_dtype",
    "weights.source",
    "fleet.provider",
    "fleet.notices",
    "fleet.notice_signal",
]


BEYOND: list[tuple[str, object]] = [
    ("seed", 2**31),
    ("algorithm.group_size", 0),
    ("algorithm.discount", 1.01),
    ("algorithm.gae_lambda", 1.01),
    ("algorithm.dynamic_sampling_factor", 0.5),
    ("algorithm.mini_batches", 0),
    ("algorithm.epochs", 0),
    ("algorithm.clip_low", 1.5),
    ("sampling.top_p", 1.01),
    ("evaluation.top_p", 1.01),
    ("evaluation.top_p", 0.0),
    ("evaluation.top_k", -1),
    ("learner.beta1", 1.0),
    ("learner.beta2", 1.0),
    ("warmup.worked_fraction", 1.01),
    ("warmup.habit_worked_fraction", 1.01),
    ("manager.port", 65536),
    ("manager.lease_seconds", 2.01),
    ("manager.drain_seconds", -1),
    ("fleet.notice_seconds", -1),
    ("fleet.notice_seconds", 86_401),
    *((name, 0) for name in POSITIVE_NUMBERS),
    *((name, "no such thing") for name in NAMES),
]


def test_a_value_just_beyond_its_range() -> None:
    assert not [each for each in BEYOND if not is_named(*each)]


def test_the_kernels_that_can_be_named_are_those_there_are() -> None:
    assert set(available_implementations()) < set(get_args(EngineAttention))


def mistakes_of(values: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        run_config_from_dict(values)
    return str(caught.value).splitlines()


def test_a_near_name_is_suggested() -> None:
    assert "did you mean 'clock'?" in mistakes({"task.name": "clocks"})[0]


def test_a_folder_name_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    line = mistakes({"compile_cache_dir": str(tmp_path / "cache")})[0]
    assert "compile_cache_dir" in line and "is a file" in line


def test_a_guard_of_the_kl_needs_the_model_it_is_taken_to():
    values = base.get_config()
    values.learner.guard_kl = 0.1
    with pytest.raises(ConfigError, match=r"kept only where algorithm\.kl_coefficient is above 0"):
        run_config(values)
    values.algorithm.kl_coefficient = 0.01
    run_config(values)


def test_schedules_count_updates_and_a_step_may_make_several() -> None:
    values = base.get_config()
    values.num_steps, values.algorithm.mini_batches, values.algorithm.epochs = 100, 2, 2
    values.learner.schedule_warmup_steps = 400
    assert run_config(values).num_updates == 400
    assert "100 steps of 4 updates" in plan_text(run_config(values))
    values.learner.schedule_warmup_steps = 401
    with pytest.raises(ConfigError, match="is 401; the run makes 400 updates"):
        run_config(values)


def test_a_budget_of_tokens_gives_each_device_whole_rows() -> None:
    """208 tokens a row: 5 of them in 1,100 on each of 2 x 3 devices; tensor shares them."""
    values = base.get_config()
    values.learner.pack_tokens = 1_100
    values.learner.mesh = (2, 3, 2)
    assert run_config(values).pack_rows == 2 * 3 * 5
    values.learner.pack_tokens = 0
    values.learner.pack_rows = 6
    assert run_config(values).pack_rows == 6


def test_a_tracker_that_is_not_installed_is_a_mistake_on_the_trainers_host_only() -> None:
    """Whose files are checked: a server, which reads the record, looks for nothing."""
    server = run_config_from_dict(changed({"observe.trackers": ("wandb",)}).to_dict())
    assert server.observe.trackers == ("wandb",)
    with pytest.raises(ConfigError, match=r"wandb.*pip install .* -e '\.\[wandb\]'"):
        check_files(server, installed=lambda package: package != "wandb")
    check_files(server, installed=lambda package: package == "wandb")


def test_pods_need_their_client() -> None:
    pods = {"fleet.provider": "kubernetes", "fleet.kubernetes.image": "rlboost"}
    record = run_config_from_dict(changed(pods).to_dict())
    with pytest.raises(ConfigError, match=r"lightkube.*pip install .* -e '\.\[kubernetes\]'"):
        check_files(record, installed=lambda package: package != "lightkube")
    check_files(record, installed=lambda package: package == "lightkube")
    pools = ({"name": "pods", "provider": "kubernetes", "options": {"image": "rlboost"}},)
    record = run_config_from_dict(changed({"fleet.pools": pools}).to_dict())
    with pytest.raises(ConfigError, match="lightkube"):
        check_files(record, installed=lambda package: package != "lightkube")


def test_jobs_need_slurms_programs() -> None:
    record = run_config_from_dict(changed({"fleet.provider": "slurm"}).to_dict())
    with pytest.raises(ConfigError, match=r"'slurm', and there is no sbatch on the PATH"):
        check_files(record, program=lambda name: None)
    check_files(record, program=lambda name: f"/usr/bin/{name}")
