"""A small model learns to use a tool, while servers and environments are killed under it.

Run:     rlboost train --config=tools_quickstart --workdir=runs/tools
Takes:   80 s on 2 CPU cores, 45 s with programs compiled before.
Result:  held-out success from 0.09 to 0.98 in 40 updates; a server is killed every
         other second, a process with environments every three. The digests in metrics.jsonl are
         those of a run with --config.fleet.chaos.enabled=False
         --config.environment.chaos_kills_per_minute=0.

A digit lies in one of 96 drawers, and notes in others say where to look next: nobody can know it
without the tool that opens drawers. After its supervised warm-up the model mostly guesses, right
1 time in 10; reinforcement learning discovers that looking pays, and how long to go on with it.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 40
    config.task.name = "environment"
    config.environment.name = "drawers"
    config.environment.options = {"mean_notes": 1.0, "most_notes": 4}
    config.environment.max_turns = 8  # five looks and an answer, and two in vain
    config.environment.max_given_tokens = 24
    config.environment.chaos_kills_per_minute = 20.0
    config.engine.max_prompt_tokens = 8
    config.sampling.max_response_tokens = 24
    config.warmup.worked_fraction = 1.0
    config.warmup.target_loss = 0.1
    config.learner.prompts_per_step = 12  # 12 prompts x 8 responses = 96 episodes per update
    config.learner.micro_batch_prompts = 6
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
