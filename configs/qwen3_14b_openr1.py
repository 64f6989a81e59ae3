"""Qwen3-14B on OpenR1-Math as in RLBoost (NSDI '26, section 6.1): 8 reserved H100, spot servers.

Run:     as configs/qwen3_8b_openr1.py
Memory:  a reserved GPU: learner 27.5 GiB (an eighth of parameters 55.0, gradients 165.0), and two
         of them the engine's weights, 13.8 each, as `--dry_run` computes them; by hand: 13.8 for
         moments under way (110.0 on the host), or 18 for activations. That is 59 of 74.5; a
         token of the pool is 80 KiB: some 100,000 of them there.
Not run: no such fleet at hand.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import qwen3_8b_openr1

CHECKPOINT = "Qwen/Qwen3-14B"


def get_config() -> ConfigDict:
    config = qwen3_8b_openr1.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.algorithm.kl_coefficient = 0.0  # room for the reference is what the engine needs
    config.learner.micro_batch_prompts = 64  # 3 trees of gradients; with 8 there would be 6
    config.learner.remat = "full"  # what attention returns takes 5.7 GiB, which the pool needs
    config.engine.slots = 32
    # A prefill would like 256. So few slots, with responses much longer than prompts, spend their
    # time in decode steps, which need as many rows on a GPU: 256 would add a sixth to each;
    # with deterministic = False they do not, and 256 is better.
    config.engine.token_rows = 128
    config.engine.tensor_parallel = 2
    config.fleet.max_instances = 6  # of 2 GPUs: the paper's best
    config.fleet.price_per_hour = 5.32  # a server's GPUs
    return config
