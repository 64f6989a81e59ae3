"""RLBoost's evaluation on three two-hour segments of an availability trace.

The paper names neither its file, nor its segments, nor which half of the machines it kept; those
below are ours. The project ships no trace: name a file.

Run:     rlboost simulate --config=paper_segments:14b
             --config.market.path=aws-p3.csv --workdir=runs/segments
Takes:   some minutes on one core.
Result:  experiments/paper_evaluation/README.md
"""

from ml_collections import ConfigDict

from rlboost_jax.configs.sim import base


def get_config(model: str = "14b") -> ConfigDict:
    config = base.get_config(model)
    config.num_steps = 0  # as many as fit
    config.settling_steps = 1  # the paper's segments are cut out of a longer run
    config.systems = ("rlboost",)
    config.market.kind = "trace"
    config.market.keep_fraction = 0.5
    config.market.segments = ((0.0, 2.0), (4.0, 6.0), (8.0, 10.0))
    config.policy.sizing = "paper"
    return config
