"""Qwen3-30B-A3B, a mixture of 128 experts, on GSM8K: 16 reserved H100, spot servers of 4.

Run:     as configs/qwen3_32b_openr1.py
Memory:  a reserved GPU: learner 28.4 GiB (a sixteenth of parameters 113.7, gradients 341.2), and
         four of them the engine's weights, 14.2 each, as `--dry_run` computes them, and 12.2 for
         a layer's experts; by hand: 8.4 for what layers keep of 46,080 tokens, 14.2 for moments on
         their way (227.5 on the hosts); 24 KiB for a token of the pool.
Routes:  384 bytes of each token (48 layers, 8 experts) on the wire, in the manager's memory and in
         its journal: 0.4 GB for a step of 1,024 responses with 1,000 tokens, prompts included, and
         2 MB/s from a server that samples 5,000 tokens a second; none of it with
         --config.algorithm.routing_replay=False. docs/how-to/models.md says what it is for.
Not run: no such fleet at hand; the layer is tested with tiny checkpoints of the family.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import qwen3_8b_openr1

CHECKPOINT = "Qwen/Qwen3-30B-A3B"


def get_config() -> ConfigDict:
    config = qwen3_8b_openr1.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.data.preset = "gsm8k"
    config.data.heldout_share = 0.05
    config.algorithm.name = "gspo"  # made for it: a token's own ratio jumps with its experts
    config.algorithm.clip_low, config.algorithm.clip_high = 3e-4, 4e-4
    config.algorithm.loss_aggregation = "sequence_mean"
    config.algorithm.kl_coefficient = 0.0
    config.sampling.max_response_tokens = 4096
    # Every device has whole experts while it computes a layer, and all rows of its own: no part of
    # a row is added up over devices, and no device has rows of experts that others hold.
    config.learner.mesh = (1, 16, 1)
    config.learner.remat = "full"
    config.learner.pack_tokens = 49_152  # 10 rows on each device for one gathering of the experts
    config.learner.micro_batch_prompts = 64
    config.learner.row_tokens = 4608
    config.engine.slots = 64
    config.engine.token_rows = 128  # an engine multiplies each row by every expert of its device
    config.engine.tensor_parallel = 4  # 32 experts on each device
    config.fleet.max_instances = 4
    config.fleet.price_per_hour = 10.64  # a server's GPUs
    config.fleet.reserved_price_per_hour = 167.58
    return config
