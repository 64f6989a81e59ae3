"""The whole loop in 4 updates of a very small model: what the system tests run.

Run:     rlboost train --config=tiny --workdir=runs/tiny
Takes:   under 60 s on 2 CPU cores once programs are compiled.
Result:  the same digests in metrics.jsonl whatever happens to the fleet; for instance with
         --config.fleet.chaos.enabled=True, or --config.fleet.max_instances=0.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 4
    config.model.embed_dim = 64
    config.model.hidden_dim = 128
    config.model.head_dim = 16
    config.task.mean_length = 40.0  # long responses, for kills to strike
    config.task.max_length = 60
    config.task.num_heldout = 64
    config.warmup.max_updates = 48
    config.warmup.target_loss = 0.0  # never reached: always 48 updates
    config.warmup.habit_updates = 4
    config.warmup.habit_worked_fraction = 0.7
    config.algorithm.clip_high = 0.25  # GRPO, with a clip a little higher than low
    config.algorithm.loss_aggregation = "token_mean"  # … and every token of the same weight
    config.sampling.max_response_tokens = 128
    config.learner.prompts_per_step = 32
    config.learner.micro_batch_prompts = 8
    config.engine.slots = 16  # few, and short dispatches, so that a step takes seconds
    config.engine.steps_per_dispatch = 4
    config.manager.progress_seconds = 10.0  # dispatches take hundredths of a second
    config.manager.window_initial_seconds = 0.1
    config.fleet.max_instances = 3
    config.fleet.chaos.kills_per_minute = 45.0
    config.fleet.chaos.terms_per_minute = 10.0
    config.fleet.chaos.joins_per_minute = 240.0
    config.evaluation.every_steps = 2
    config.evaluation.num_prompts = 16
    config.observe.trackers = ()
    return config
