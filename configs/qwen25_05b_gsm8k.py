"""Qwen2.5-0.5B-Instruct on GSM8K: one GPU, and whatever servers join it.

Run:     export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92   # with JAX's 0.75 of 24 GB it does not fit
         rlboost train --config=qwen25_05b_gsm8k --workdir=runs/gsm8k
         rlboost rollout --manager=HOST:PORT --join=FOLDER   # on other machines
Memory:  learner 12.9 GiB, engine 3.4 GiB (weights 0.9, pool 2.4 where it is to have all it can
         use); with activations a GPU of 24 GB. As `--dry_run` computes it.
Not run: no GPU with the checkpoint and the data at hand; `--dry_run` and the sizes above are.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base

CHECKPOINT = "Qwen/Qwen2.5-0.5B-Instruct"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 200
    config.model.source = CHECKPOINT
    config.model.dtype = "bfloat16"
    config.task.name = "dataset"
    config.data.preset = "gsm8k"  # 7,473 problems; the test split is held out
    config.data.tokenizer = CHECKPOINT
    config.warmup.max_updates = 0  # it has learnt to speak elsewhere
    config.algorithm.name = "dr_grpo"
    config.algorithm.group_size = 8
    config.sampling.max_response_tokens = 512  # worked answers have 100 to 300
    config.learner.prompts_per_step = 64  # 512 responses an update
    config.learner.micro_batch_prompts = 16
    config.learner.pack_tokens = 16_384  # of a packed batch
    config.learner.device_gb = 22.0  # 0.92 of a GPU of 24 GB
    config.learner.row_tokens = 1024
    config.learner.learning_rate = 1e-6
    config.learner.schedule_warmup_steps = 10
    config.learner.remat = "attention"
    config.engine.max_prompt_tokens = 320  # the longest problem in the chat template
    config.engine.slots = 256
    config.engine.token_rows = (
        256  # 512 would spare a prefill a third, and cost each decode step as much
    )
    config.engine.kv_dtype = "bfloat16"
    config.weights.rollout_dtype = "bfloat16"
    config.manager.window_initial_seconds = 20.0
    config.checkpoint.every_steps = 10
    config.fleet.provider = "none"  # servers are started by hand, on any host
    config.evaluation.every_steps = 10
    config.evaluation.num_prompts = 256
    return config
