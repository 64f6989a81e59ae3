"""A tiny checkpoint is trained by a command-line agent that knows OPENAI_BASE_URL only."""

import os
import sys
from pathlib import Path

from ml_collections import ConfigDict

from rlboost_jax.configs import base

MARK = "RLBOOST_TEST_WORKDIR"
AGENT = Path(__file__).with_name("agent.py")


def get_config() -> ConfigDict:
    start = os.environ["GATEWAY_TEST_START"]  # what `make_checkpoint` of places.py writes
    config = base.get_config()
    config.num_steps = 2
    config.model.source = f"{start}/checkpoint"
    config.task.name = "dataset"
    config.data.source = f"{start}/train.jsonl"
    config.data.heldout_source = f"{start}/test.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.data.chat_template = os.environ["GATEWAY_TEST_TEMPLATE"]
    config.environment.name = "gateway"
    config.environment.options = {
        "command": [sys.executable, str(AGENT), "--turns=3", "--sum-up=5"],
        "reward": "tests.gateway.agent:reward",
        # By it a test knows the processes of its run.
        "variables": {name: os.environ[name] for name in (MARK,) if name in os.environ},
    }
    config.environment.max_turns = 4
    config.environment.unstable_template = "new_sequence"
    config.environment.turn_tokens = 12
    config.environment.max_given_tokens = 160
    config.environment.workers = 2
    config.warmup.max_updates = 0
    config.sampling.max_response_tokens = 48
    config.learner.prompts_per_step = 4
    config.learner.micro_batch_prompts = 2
    config.algorithm.group_size = 4
    config.engine.max_prompt_tokens = 256
    config.engine.slots = 16
    config.fleet.max_instances = 0
    config.evaluation.every_steps = 0
    config.observe.samples_every_steps = 1
    config.observe.samples_prompts = 4  # all
    return config
