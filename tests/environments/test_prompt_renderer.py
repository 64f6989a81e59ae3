"""What a run's policy speaks with."""

import pytest

from configs import base
from rlboost_jax.environments.prompt_renderer import renderer_of
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.load import run_config


def bytes_run(vocab_size):
    config = base.get_config()
    config.data.tokenizer = "bytes"
    config.model.vocab_size = vocab_size
    return run_config(config)


def test_a_model_needs_the_marks_of_a_conversation():
    """Ids beyond the vocabulary would be taken for others without a word."""
    with pytest.raises(ConfigError, match=r"vocab_size is 258; .*'bytes' has 262 tokens"):
        renderer_of(bytes_run(258), ())
    renderer = renderer_of(bytes_run(262), ())
    assert max(renderer.first("3 + 4?", ())) < 262
