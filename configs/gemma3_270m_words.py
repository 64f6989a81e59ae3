"""Gemma 3 270M learns to pick the word that is asked for, while its servers are killed.

Run:     make gemma     # all parameters: make gemma GEMMA="--config.model.lora.rank=0
                        #     --config.learner.learning_rate=5e-6"
         (or: python tools/make_gemma_start.py --to=runs/gemma_start
              rlboost train --config=gemma3_270m_words --workdir=runs/gemma)
Model:   the published base model in a quantised form, read into float32. Gemma's terms of use,
         https://ai.google.dev/gemma/terms, hold for it and for what is trained from it.

A question lists five words of five kinds and asks for the one of a kind, such as the fruit. The
reward is 1 for the right word and a full stop. The words of the test are in no question that it
trains on.
"""

from ml_collections import ConfigDict

from rlboost_jax.configs import base

START = "runs/gemma_start"  # what tools/make_gemma_start.py writes
FULL_STOP = 236_761  # the token "."


def get_config() -> ConfigDict:
    config = base.get_config()
    config.num_steps = 24
    config.model.source = f"{START}/gemma-3-270m-q4_k_m.gguf"
    config.model.lora.rank = 8  # adapters; 0: all parameters are trained
    config.model.lora.alpha = 16.0
    config.task.name = "dataset"
    config.data.source = f"{START}/train.jsonl"
    config.data.heldout_source = f"{START}/test.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.data.chat = "never"  # a base model: it continues the text
    config.data.stop_ids = (FULL_STOP,)
    config.rewards.functions = ({"name": "exact"},)
    config.rewards.workers = 1
    config.warmup.max_updates = 0  # none: the checkpoint can answer
    config.sampling.max_response_tokens = 6
    config.algorithm.group_size = 8
    config.learner.learning_rate = 3e-4  # of adapters; 5e-6 is more like that of all parameters
    config.learner.prompts_per_step = 16  # 16 prompts x 8 responses = 128 sequences per update
    config.learner.micro_batch_prompts = 4
    config.learner.pack_tokens = 512
    config.learner.row_tokens = 512
    config.learner.remat = "dots"
    config.engine.max_prompt_tokens = 34
    config.engine.slots = 32
    config.engine.steps_per_dispatch = 3  # most responses are two tokens
    config.manager.progress_seconds = 60.0
    config.fleet.max_instances = 2
    config.fleet.chaos.enabled = True
    config.fleet.chaos.kills_per_minute = 1.5
    config.fleet.chaos.terms_per_minute = 0.0
    config.fleet.chaos.joins_per_minute = 20.0
    config.evaluation.every_steps = 4
    config.evaluation.num_prompts = 96
    return config
