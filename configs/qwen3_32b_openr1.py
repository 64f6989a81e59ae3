"""Qwen3-32B on OpenR1-Math as in RLBoost (NSDI '26, section 6.1): 16 reserved H100 on two nodes.

Run:     as configs/qwen3_8b_openr1.py, the trainer on both nodes, with a workdir that both see and
             --coordinator=NODE0:1234 --num_processes=2 --process_index=0 (or 1)
Memory:  a reserved GPU: learner 30.5 GiB (a sixteenth of parameters 122.0, gradients 366.1), engine
         61.0 of weights, as `--dry_run` computes them; by hand: 15.3 for moments on their way
         (244.1 on the hosts), 10 for scores of attention; 256 KiB for a token of the pool.
Not run: and it cannot be on 80 GB: an engine has one device, whose weights alone take 61 GiB of
         it in bfloat16. Servers want 141 GB each (H200), the trainer's own engine its first one.
"""

from ml_collections import ConfigDict

from configs import qwen3_14b_openr1

CHECKPOINT = "Qwen/Qwen3-32B"


def get_config() -> ConfigDict:
    config = qwen3_14b_openr1.get_config()
    config.model.source = config.data.tokenizer = CHECKPOINT
    config.learner.mesh = (1, 2, 8)
    config.fleet.reserved_price_per_hour = 167.58  # 16 GPUs
    return config
