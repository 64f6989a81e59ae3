from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from configs import base
from rlboost_jax.rollout import instance
from rlboost_jax.settings.config_loading import run_config


@pytest.mark.parametrize("deterministic", [True, False])
def test_bits_are_asked_for_and_looked_at_in_deterministic_runs(deterministic: bool) -> None:
    run = replace(run_config(base.get_config()), deterministic=deterministic)
    layout = MagicMock(text_tokens=0)
    built = MagicMock(return_value=MagicMock(spec=instance.Engine, memory="", layout=layout))
    engine = instance.engine_of(run, build=built)
    assert built.call_args.kwargs["exact"] == deterministic
    assert engine.assert_row_invariance.called == deterministic
