"""Qwen3-8B on OpenR1-Math as in RLBoost (NSDI '26, section 6.1): 8 reserved H100, spot servers.

Run:     export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92   # everywhere; with JAX's 0.75 it does not fit
         rlboost train --config=qwen3_8b_openr1 --workdir=runs/8b \\
             --config.manager.host=0.0.0.0
         CUDA_VISIBLE_DEVICES=0 rlboost rollout --manager=HOST:PORT --join=FOLDER
         CUDA_VISIBLE_DEVICES=1 …   # a 2-GPU instance is two servers: an engine has one GPU
Memory:  a reserved GPU: learner 26.7 GiB (an eighth of parameters 30.5, gradients 152.6, reference
         30.5), engine 15.3 of weights, as `--dry_run` computes them; by hand: 7.6 for moments on
         their way (61.0 on the host), or 18 for activations. A token of the pool is 144 KiB: some
         50,000 of them there on 80 GB, 260,000 on a server, which has its weights twice.
Not run: no such fleet at hand.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base

CHECKPOINT = "Qwen/Qwen3-8B"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 200
    config.model.source = CHECKPOINT
    config.model.dtype = "bfloat16"
    config.task.name = "dataset"
    config.data.preset = "openr1_math"
    config.data.tokenizer = CHECKPOINT
    config.data.heldout_share = 0.1  # the paper's split
    config.warmup.max_updates = 0
    config.algorithm.name = "grpo"
    config.algorithm.group_size = 8
    config.algorithm.clip_low = config.algorithm.clip_high = 0.2
    config.algorithm.loss_aggregation = "token_mean"
    config.algorithm.kl_coefficient = 0.001  # to the starting model, k3, in the loss
    config.sampling.max_response_tokens = 14_336
    config.learner.prompts_per_step = 128  # 1,024 responses an update
    config.learner.micro_batch_prompts = 16  # 8 of them; gradients take 5 trees of float32
    # Rows side by side: gathering parameters takes a third of the time that adding up the
    # activations of divided heads would, and arithmetic hides it (benchmarks/README.md, "h100").
    config.learner.mesh = (1, 8, 1)
    config.learner.device_gb = 78.0  # 0.92 of an H100
    config.learner.pack_tokens = 16_384  # of a packed batch
    config.learner.row_lengths = 3  # rows of 14,848, 7,424 and 3,712 tokens
    config.learner.remat = "attention"
    config.learner.learning_rate = 1e-6
    config.learner.beta2 = 0.999
    config.learner.moment_memory = "host"
    config.engine.max_prompt_tokens = 512
    config.engine.slots = 64
    config.engine.page_size = 64
    # What an H100 multiplies while it reads the weights once (benchmarks/README.md, "h100"): with
    # 128 a prefill waits for memory most of the time, with 512 decode steps, which need as many
    # rows on a GPU, would wait for arithmetic.
    config.engine.token_rows = 256
    config.engine.kv_dtype = "bfloat16"
    config.weights.rollout_dtype = "bfloat16"
    config.manager.progress_seconds = 120.0  # a prefill of all slots takes tens of seconds
    config.manager.window_initial_seconds = 150.0  # T_init of the published artifact
    config.manager.window_eta = 3.0
    config.checkpoint.every_steps = 5
    config.fleet.provider = "none"
    config.fleet.max_instances = 8  # 4 spot instances of 2 GPUs
    config.fleet.price_per_hour = 2.66  # a server's GPU
    config.fleet.reserved_price_per_hour = 83.79  # 8 GPUs
    config.evaluation.every_steps = 10
    config.evaluation.num_prompts = 128
    config.observe.samples_every_steps = 5
    return config
