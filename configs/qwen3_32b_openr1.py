"""Qwen3-32B on OpenR1-Math as in RLBoost (NSDI '26, section 6.1): 16 reserved H100 on two nodes.

Run:     as configs/qwen3_8b_openr1.py, the trainer on both nodes, with a workdir that both see and
             --coordinator=NODE0:1234 --num_processes=2 --process_index=0 (or 1)
Memory:  a reserved GPU: learner 30.5 GiB (a sixteenth of parameters 122.0, gradients 366.1), and
         four of them the engine's weights, 15.3 each, as `--dry_run` computes them; by hand: 15.3
         for moments on their way (244.1 on the hosts), or 22 for activations. That is 68 of 74.5,
         and 64 KiB for a token of the pool: with --config.engine.tensor_parallel=8 it is 63
         and 32, and servers have 8 GPUs.
Not run: no such fleet at hand.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import qwen3_14b_openr1

CHECKPOINT = "Qwen/Qwen3-32B"


def get_config() -> ConfigDict:
    config = qwen3_14b_openr1.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.learner.mesh = (1, 16, 1)
    config.engine.tensor_parallel = 4
    config.engine.token_rows = 64  # 128 would add a fifth to each decode step, where the time goes
    config.fleet.price_per_hour = 10.64  # a server's GPUs
    config.fleet.reserved_price_per_hour = 167.58  # 16 GPUs
    return config
