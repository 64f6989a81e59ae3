"""A small model learns to show its work, while the servers that it generates on are killed.

Run:     make quickstart
         (or: rlboost train --config=quickstart --workdir=runs/quickstart)
Takes:   about 2 minutes on 2 CPU cores.
Result:  held-out accuracy from about 0.15 to above 0.9 in 60 updates, while a server is
         killed every other second; runs/quickstart/report.html shows the run.

The task asks where a clock hand points after n steps. After its supervised warm-up the
model mostly guesses (3 tokens, right 1 time in 10); reinforcement learning discovers that
writing down every step pays, so reward and response length rise together.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 60
    config.task.name = "clock"
    config.learner.prompts_per_step = 24  # 24 prompts x 8 responses = 192 trajectories per update
    config.algorithm.group_size = 8
    config.algorithm.clip_high = 0.25  # GRPO, with a clip a little higher than low
    config.algorithm.loss_aggregation = "token_mean"  # … and every token of the same weight
    config.manager.progress_seconds = 10.0  # dispatches take hundredths of a second
    config.manager.window_initial_seconds = 0.3
    config.fleet.max_instances = 3
    config.fleet.chaos.enabled = True
    config.fleet.chaos.kills_per_minute = 36.0
    config.fleet.chaos.terms_per_minute = 4.0
    config.fleet.chaos.joins_per_minute = 120.0
    config.evaluation.every_steps = 5
    config.evaluation.num_prompts = 128
    return config
