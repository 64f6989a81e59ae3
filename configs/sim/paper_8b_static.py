"""RLBoost's evaluation with fixed fleets: Qwen3-8B.

Run:     rlboost simulate --config=paper_8b_static --workdir=runs/sim
Takes:   some minutes on one core.
Result:  experiments/paper_evaluation/README.md
"""

from ml_collections import ConfigDict

from rlboost_jax.configs.sim import paper_14b_static


def get_config() -> ConfigDict:
    return paper_14b_static.get_config("8b")
