"""Qwen3-0.6B on GSM8K: one GPU, and whatever servers join it.

Run:     as configs/qwen25_05b_gsm8k.py
Memory:  learner 15.5 GiB, engine 1.1 GiB of weights and a pool of up to 38.1 GiB; the pool takes
         what is left of 0.9 of the device: all of it on 80 GB, some 4 GiB on 32 GB. A packed batch
         and one rollout make 22.7 GiB, which 24 GB do not give. As `--dry_run` computes it.
Not run: no GPU with the checkpoint and the data at hand; `--dry_run` and the sizes above are.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import qwen25_05b_gsm8k

CHECKPOINT = "Qwen/Qwen3-0.6B"


def get_config() -> ConfigDict:
    config = qwen25_05b_gsm8k.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.sampling.max_response_tokens = 1536  # it thinks before it answers
    config.learner.row_tokens = 2048
    config.learner.row_lengths = 2
    config.learner.device_gb = 29.0  # 0.92 of a GPU of 32 GB
    config.engine.slots = 192
    # Decode steps wait for keys and values, so that rows cost them little; of fewer than this the
    # logits of all slots are most of what a prefill moves.
    config.engine.token_rows = 512
    config.manager.window_initial_seconds = 40.0
    return config
