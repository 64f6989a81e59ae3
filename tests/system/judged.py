"""A small run on questions whose rewards are a user's: one compares the responses of a group, one
waits, and both draw random numbers.

No answer is right, nobody has been taught anything: rewards only have to differ, and to depend on
all that a judge is given.
"""

import asyncio
import json
import random
import zlib
from pathlib import Path

from ml_collections import ConfigDict

from rlboost_jax.configs import base

WAITS = 0.01  # seconds, at most


def ranked(completions, completion_ids, answer, **columns):
    """Reward the share of a group's responses with fewer different tokens, plus some chance."""
    variety = [len(set(ids)) for ids in completion_ids]
    return [
        sum(other < own for other in variety) / len(variety) + 0.1 * random.random() + (a in text)
        for own, text, a in zip(variety, completions, answer, strict=True)
    ]


async def asked(prompts, completion_ids, **columns):
    """What a service might say, late and in any order."""
    await asyncio.sleep(WAITS * random.random())
    return [zlib.crc32(f"{prompts[0]} {list(ids)}".encode()) / 2**32 for ids in completion_ids]


def write_questions(path: Path) -> None:
    rows = ({"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(8) for b in range(8))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.vocab_size = 264
    config.model.embed_dim = 32
    config.model.hidden_dim = 64
    config.model.num_layers = 1
    config.model.head_dim = 16
    config.task.name = "dataset"
    config.data.tokenizer = "bytes"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.rewards.functions = (
        {"name": "tests.system.judged:ranked", "per": "group"},
        {"name": "tests.system.judged:asked", "max_concurrent": 4, "weight": 0.5},
    )
    config.rewards.time_limit_seconds = 600.0  # of a machine that stands still for a while, too
    config.warmup.max_updates = 0
    config.sampling.max_response_tokens = 64
    config.engine.slots = 16
    config.engine.steps_per_dispatch = 4
    config.engine.max_prompt_tokens = 16
    config.learner.prompts_per_step = 8
    config.learner.micro_batch_prompts = 4
    config.learner.learning_rate = 1e-3
    config.evaluation.every_steps = 0
    config.manager.window_initial_seconds = 0.1
    config.fleet.max_instances = 2
    config.observe.trackers = ()
    return config
