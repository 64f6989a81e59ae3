"""RLBoost's evaluation with fixed fleets: Qwen3-14B, one reserved node, 0 to 8 instances.

Run:     rlboost simulate --config=paper_14b_static --workdir=runs/sim
Takes:   some minutes on one core.
Result:  experiments/paper_evaluation/README.md
"""

from ml_collections import ConfigDict

from rlboost_jax.configs.sim import base


def get_config(model: str = "14b") -> ConfigDict:
    config = base.get_config(model)
    config.num_steps = 24
    config.settling_steps = 12  # the window begins at 150 s and moves by a third of its error
    config.systems = ("rlboost", "colocated_static", "colocated_2x")
    return config
