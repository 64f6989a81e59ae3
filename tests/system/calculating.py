"""Configuration of `test_turns.py`: the very small model, with a calculator."""

from ml_collections import ConfigDict

from rlboost_jax.configs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.task.name = "environment"
    config.environment.name = "tests.system.calculator:Calculator"
    config.environment.options = {"log": "", "seconds": 0.0}
    config.environment.max_turns = 4  # one more than it has
    config.environment.turn_tokens = 12
    config.environment.max_given_tokens = 32
    config.environment.time_limit_seconds = 3600.0  # a tester may hold it up
    config.warmup.max_updates = 0
    config.warmup.habit_updates = 0
    config.sampling.max_response_tokens = 36
    config.model.vocab_size = 112
    return config
