"""Llama-3.2-1B-Instruct on GSM8K with LoRA: one GPU of 24 GB, and whatever servers join it.

Run:     rlboost train --config=llama32_1b_lora --workdir=runs/lora
         rlboost rollout --manager=HOST:PORT --join=FOLDER   # on other machines
         python -m rlboost_jax.export --workdir=runs/lora --to=FOLDER [--adapter]
Memory:  learner 2.9 GiB (32.2 were all parameters trained), engine 7.9 GiB (weights 2.3 twice, pool
         3.2); with activations a GPU of 24 GB. A server fetches 2.3 GiB once and 43 MiB a version,
         and keeps the 2.3 GiB in its host's memory. As `--dry_run` computes it.
Not run: no GPU with the checkpoint and the data at hand; `--dry_run` and the sizes above are.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import qwen25_05b_gsm8k

CHECKPOINT = "meta-llama/Llama-3.2-1B-Instruct"


def get_config() -> ConfigDict:
    config = qwen25_05b_gsm8k.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.model.lora.rank = 32
    config.model.lora.alpha = 32.0
    config.learner.learning_rate = 1e-5  # ten times what all parameters would be trained with
    config.engine.slots = 128
    config.engine.token_rows = 128
    return config
