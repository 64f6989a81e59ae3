"""Qwen3-0.6B on GSM8K: one GPU, and whatever servers join it.

Run:     python -m rlboost_jax.main --config=configs/qwen3_06b_gsm8k.py --workdir=runs/gsm8k
Memory:  learner 15.5 GiB, engine 1.1 GiB of weights and a pool of up to 38.1 GiB; the pool takes
         what is left of 0.9 of the device: all of it on 80 GB, 1 to 3 GiB on 24 GB.
Not run: no GPU with the checkpoint and the data at hand; `--dry_run` and the sizes above are.
"""

from ml_collections import ConfigDict

from configs import qwen25_05b_gsm8k

CHECKPOINT = "Qwen/Qwen3-0.6B"


def get_config() -> ConfigDict:
    config = qwen25_05b_gsm8k.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.sampling.max_response_tokens = 1536  # it thinks before it answers
    config.learner.row_tokens = 2048
    config.learner.row_lengths = 2
    config.engine.slots = 192
    # Decode steps wait for keys and values, so that rows cost them little; of fewer than this the
    # logits of all slots are most of what a prefill moves.
    config.engine.token_rows = 512
    config.manager.window_initial_seconds = 40.0
    return config
