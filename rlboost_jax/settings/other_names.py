"""Settings of TRL, verl and OpenRLHF, and what each is called here.

An unknown setting is looked up in this table ("did you mean learner.learning_rate?"), and the
comparison in docs/how-to/from-trl-or-verl.md is made from it:

    python -m rlboost_jax.settings.other_names
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rlboost_jax.platform import command_parser


class Elsewhere(NamedTuple):
    """One setting of this project, and its names in other libraries.

    Attributes:
        here: dotted, as after `--config.`; an option such as `--workdir` where it is one.
        trl: of `GRPOConfig`, `GRPOTrainer` and `LoraConfig`.
        verl: of its configuration of PPO, as much of the dotted name as is written.
        openrlhf: options of `train_ppo_ray`, without `--`.
        plain: names that people type without any library in mind.
        note: where the values differ.
    """

    here: str
    trl: tuple[str, ...] = ()
    verl: tuple[str, ...] = ()
    openrlhf: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    note: str = ""


def _row(
    here: str, trl: str = "", verl: str = "", openrlhf: str = "", plain: str = "", note: str = ""
) -> Elsewhere:
    """Make a row from names with blanks between them."""
    return Elsewhere(
        here,
        tuple(trl.split()),
        tuple(verl.split()),
        tuple(openrlhf.split()),
        tuple(plain.split()),
        note,
    )


# fmt: off
TABLE: Final = (
    _row("model.source", "model model_name_or_path", "actor_rollout_ref.model.path model.path",
         "pretrain", "model_name model_path checkpoint"),
    _row("data.source", "train_dataset dataset_name", "data.train_files", "prompt_data",
         "dataset train_file"),
    _row("data.heldout_source", "eval_dataset", "data.val_files", "eval_dataset"),
    _row("data.messages_column", "", "data.prompt_key", "input_key", "",
         "for a list of messages; `data.prompt_column` for a text"),
    _row("data.answer_column", "", "reward_model.ground_truth", "label_key", "answer_key"),
    _row("data.template", "", "", "input_template"),
    _row("data.chat", "", "", "apply_chat_template"),
    _row("data.chat_options", "chat_template_kwargs", "data.apply_chat_template_kwargs"),
    _row("rewards.functions", "reward_funcs reward_weights",
         "custom_reward_function.path custom_reward_function.name", "remote_rm_url reward_pretrain",
         "reward_function reward_fn", 'a list: `({"name": "my_module:function", "weight": 1.0},)`'),
    _row("learner.prompts_per_step", "generation_batch_size per_device_train_batch_size",
         "data.train_batch_size", "rollout_batch_size",
         "batch_size train_batch_size global_batch_size",
         "prompts of an update, on all devices together; TRL counts responses"),
    _row("learner.micro_batch_prompts", "gradient_accumulation_steps",
         "ppo_micro_batch_size_per_gpu ppo_micro_batch_size", "micro_train_batch_size",
         "micro_batch_size mini_batch_size",
         "prompts whose gradient is computed together; larger values need less memory here, "
         "`learner.pack_rows` limits activations"),
    _row("algorithm.mini_batches", "steps_per_generation", "ppo_mini_batch_size", "", "",
         "the number of updates that a batch is divided into, not their size"),
    _row("algorithm.epochs", "num_iterations", "actor.ppo_epochs ppo_epochs", "max_epochs"),
    _row("num_steps", "max_steps", "trainer.total_training_steps", "num_episodes",
         "steps num_train_epochs total_epochs epochs max_train_steps",
         "batches, not passes over the data"),
    _row("algorithm.group_size", "num_generations", "actor_rollout_ref.rollout.n rollout.n",
         "n_samples_per_prompt", "num_samples num_rollouts"),
    _row("sampling.max_response_tokens", "max_completion_length", "data.max_response_length",
         "generate_max_len", "max_tokens max_new_tokens max_length response_length"),
    _row("engine.max_prompt_tokens", "max_prompt_length", "data.max_prompt_length",
         "prompt_max_len", "max_input_length", "longer prompts are left out, not cut"),
    _row("sampling.temperature", "temperature", "rollout.temperature", "temperature"),
    _row("sampling.top_p", "top_p", "rollout.top_p", "top_p"),
    _row("sampling.top_k", "top_k", "rollout.top_k", "", "", "0 keeps all, not -1"),
    _row("algorithm.name", "loss_type", "algorithm.adv_estimator adv_estimator",
         "advantage_estimator", "algorithm_name"),
    _row("algorithm.advantage", "scale_rewards", "norm_adv_by_std_in_grpo",
         "no_advantage_std_norm"),
    _row("algorithm.loss_aggregation", "", "loss_agg_mode"),
    _row("algorithm.ratio_level", "importance_sampling_level", "loss_mode"),
    _row("algorithm.kl_coefficient", "beta",
         "kl_loss_coef algorithm.kl_ctrl.kl_coef use_kl_loss use_kl_in_reward",
         "init_kl_coef use_kl_loss", "kl_coef kl_coeff kl_beta kl_penalty"),
    _row("algorithm.kl_estimator", "", "kl_loss_type", "kl_estimator"),
    _row("algorithm.clip_low", "epsilon", "clip_ratio clip_ratio_low", "eps_clip",
         "clip clip_range clip_eps cliprange", "with `algorithm.clip_high`, the range above 1"),
    _row("algorithm.clip_high", "epsilon_high", "clip_ratio_high", "eps_clip_low_high"),
    _row("algorithm.dual_clip", "delta", "clip_ratio_c", "dual_clip"),
    _row("algorithm.entropy_coefficient", "", "entropy_coeff", "entropy_loss_coef",
         "entropy_coef ent_coef"),
    _row("algorithm.correction", "vllm_importance_sampling_correction",
         "rollout_correction.rollout_is", "enable_vllm_is_correction"),
    _row("algorithm.dynamic_sampling", "", "filter_groups.enable", "dynamic_filtering"),
    _row("algorithm.overlong_filter", "mask_truncated_completions"),
    _row("algorithm.overlong_band", "", "overlong_buffer.len", "", "", "a share, not tokens"),
    _row("algorithm.overlong_penalty", "", "overlong_buffer.penalty_factor"),
    _row("algorithm.discount", "", "algorithm.gamma", "gamma", "discount_factor"),
    _row("algorithm.gae_lambda", "", "algorithm.lam", "lambd", "lam lmbda"),
    _row("algorithm.critic_learning_rate", "", "critic.optim.lr", "critic_learning_rate"),
    _row("algorithm.lag", "", "staleness_threshold", "async_queue_size",
         "staleness off_policy_steps max_staleness",
         "always that many updates, so that results repeat"),
    _row("learner.learning_rate", "learning_rate", "actor.optim.lr", "actor_learning_rate", "lr"),
    _row("learner.schedule", "lr_scheduler_type", "warmup_style", "lr_scheduler"),
    _row("learner.schedule_warmup_steps", "warmup_steps warmup_ratio",
         "lr_warmup_steps lr_warmup_steps_ratio", "lr_warmup_ratio", "", "steps, not a share"),
    _row("learner.weight_decay", "weight_decay", "optim.weight_decay", "l2"),
    _row("learner.beta1", "adam_beta1", "", "adam_betas"),
    _row("learner.beta2", "adam_beta2"),
    _row("learner.max_gradient_norm", "max_grad_norm", "grad_clip", "max_norm",
         "clip_grad gradient_clipping grad_norm_clip"),
    _row("learner.remat", "gradient_checkpointing", "enable_gradient_checkpointing",
         "gradient_checkpointing", "activation_checkpointing"),
    _row("learner.pack_tokens", "", "ppo_max_token_len_per_gpu use_dynamic_bsz",
         "packing_samples max_tokens_per_gpu train_max_tokens_per_gpu", "",
         "packing is always on; this is the size of a packed batch"),
    _row("learner.mesh", "", "trainer.n_gpus_per_node trainer.nnodes fsdp_size",
         "actor_num_gpus_per_node actor_num_nodes zero_stage",
         "num_gpus num_devices n_gpus tp_size fsdp", "devices along (data, fsdp, tensor)"),
    _row("learner.moment_memory", "", "optimizer_offload", "adam_offload"),
    _row("model.dtype", "bf16 fp16", "rollout.dtype", "param_dtype", "dtype torch_dtype precision"),
    _row("model.lora.rank", "r lora_r", "model.lora_rank", "lora_rank", "lora_dim"),
    _row("model.lora.alpha", "lora_alpha", "model.lora_alpha", "lora_alpha"),
    _row("model.lora.targets", "target_modules lora_target_modules", "model.target_modules",
         "target_modules"),
    _row("engine.slots", "", "rollout.max_num_seqs", "", "max_num_seqs max_batch_size num_envs"),
    _row("engine.memory_fraction", "vllm_gpu_memory_utilization", "rollout.gpu_memory_utilization",
         "vllm_gpu_memory_utilization", "gpu_memory_utilization",
         "on reserved devices the learner takes its memory first, engines share the rest"),
    _row("engine.tensor_parallel", "vllm_tensor_parallel_size",
         "rollout.tensor_model_parallel_size", "vllm_tensor_parallel_size", "tensor_parallel_size"),
    _row("fleet.max_instances", "", "", "vllm_num_engines", "num_workers num_servers num_engines",
         "servers that the run starts itself; 0: reserved devices generate alone"),
    _row("environment.max_turns", "max_tool_calling_iterations",
         "multi_turn.max_assistant_turns multi_turn.max_turns"),
    _row("checkpoint.every_steps", "save_steps", "trainer.save_freq", "save_steps"),
    _row("checkpoint.keep", "save_total_limit", "max_actor_ckpt_to_keep", "max_ckpt_num", "",
         "the newest; `checkpoint.keep_every` keeps some for good"),
    _row("evaluation.every_steps", "eval_steps", "trainer.test_freq", "eval_steps",
         "eval_freq eval_every"),
    _row("evaluation.samples", "", "val_kwargs.n", "eval_n_samples_per_prompt"),
    _row("evaluation.temperature", "", "val_kwargs.temperature", "eval_temperature"),
    _row("observe.trackers", "report_to", "trainer.logger", "use_wandb use_tensorboard",
         "logger wandb tensorboard"),
    _row("observe.wandb.project", "", "trainer.project_name", "wandb_project", "project"),
    _row("observe.wandb.name", "run_name", "trainer.experiment_name", "wandb_run_name"),
    _row("seed", "seed", "data.seed", "seed", "random_seed"),
    _row("--workdir", "output_dir", "trainer.default_local_dir", "save_path ckpt_path",
         "logdir log_dir out_dir"),
    _row("--fork=RUN@STEP", "resume_from_checkpoint",
         "trainer.resume_mode trainer.resume_from_path", "load_checkpoint", "resume resume_from",
         "a run that was stopped needs nothing: give the same command again"),
)
# fmt: on


def _by_name() -> dict[str, Elsewhere]:
    """Rows by each name in another library, and by the last part of a dotted one where unique."""
    found: dict[str, Elsewhere] = {}
    for row in TABLE:
        for name in (*row.plain, *row.trl, *row.verl, *row.openrlhf):
            found.setdefault(name, row)
    for row in TABLE:
        for name in row.verl:
            if (last := name.rpartition(".")[2]) not in _VAGUE:
                found.setdefault(last, row)
    return found


_VAGUE: Final = frozenset({"n", "path", "name", "len", "enable"})
_BY_NAME: Final = _by_name()


def elsewhere(name: str) -> Elsewhere | None:
    """Find the row of another library's setting, None for an unknown name.

    Args:
        name: with any sections before it, as in `learner.lr` or `actor_rollout_ref.rollout.n`; `-`
            counts as `_`.
    """
    rest = name.replace("-", "_").lower()
    while rest and rest not in _BY_NAME:
        rest = rest.partition(".")[2]
    return _BY_NAME.get(rest)


def meant(name: str) -> str:
    """Ask whether the setting with this name in another library is meant; "" for other names."""
    row = elsewhere(name)
    if row is None:
        return ""
    note = f" ({row.note.replace('`', '')})" if row.note else ""
    return f"did you mean {row.here}?{note}"


def table() -> Iterator[str]:
    """The lines of the comparison, in Markdown."""
    yield "| here | TRL | verl | OpenRLHF | |"
    yield "|---|---|---|---|---|"
    for row in TABLE:
        names = (", ".join(f"`{n}`" for n in each) for each in (row.trl, row.verl, row.openrlhf))
        yield f"| `{row.here}` | {' | '.join(names)} | {row.note} |".replace("|  |", "| |")


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.settings.other_names", __doc__)
    print(*table(), sep="\n")
