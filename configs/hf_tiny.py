"""A tiny checkpoint in Hugging Face's format learns to add, while its servers are killed.

Run:     make hf-tiny
         (or: python tools/make_hf_tiny.py --to=runs/hf_tiny_start
              rlboost train --config=hf_tiny --workdir=runs/hf_tiny)
Takes:   about 3 minutes on 2 CPU cores, besides one to make the checkpoint.
Result:  reward from 0.23 to 0.79 and held-out accuracy from 0.78 to 0.88 in 40 updates, while 24
         servers were killed. (Greedy answers are better than sampled ones: the checkpoint knows
         sums and has been taught to guess.)

It goes the way of every larger run: parameters from safetensors, questions from JSONL, through
the checkpoint's own tokenizer and chat template, answers judged by math-verify in processes of
their own. Only the checkpoint is ours: nothing is downloaded.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base

START = "runs/hf_tiny_start"  # what tools/make_hf_tiny.py writes


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 40
    config.model.source = f"{START}/checkpoint"
    config.task.name = "dataset"
    config.data.source = f"{START}/train.jsonl"
    config.data.heldout_source = f"{START}/test.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.rewards.functions = ({"name": "math", "options": {"boxed_only": True}},)
    config.warmup.max_updates = 0  # none: the checkpoint can answer
    config.sampling.max_response_tokens = 16
    config.learner.learning_rate = 5e-4
    config.learner.prompts_per_step = 32
    config.learner.micro_batch_prompts = 8
    config.engine.max_prompt_tokens = 32
    config.manager.progress_seconds = 10.0  # dispatches take hundredths of a second
    config.manager.window_initial_seconds = 0.3
    config.fleet.max_instances = 2
    config.fleet.chaos.enabled = True
    config.fleet.chaos.kills_per_minute = 12.0
    config.fleet.chaos.joins_per_minute = 60.0
    config.evaluation.every_steps = 10
    config.evaluation.num_prompts = 50
    return config
