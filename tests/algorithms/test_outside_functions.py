"""Functions of other packages do what built-in ones do, or are refused by name before a device."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.advantages import group_advantages
from rlboost_jax.algorithms.outside_functions import check_outside_functions
from rlboost_jax.algorithms.rloo import RLOO
from rlboost_jax.learner.programs.objective import check_traced
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.presets import PRESETS
from tests.patience import PATIENCE_SECONDS

HERE = __name__
GRPO = PRESETS["grpo"]


def by_rank(rewards: np.ndarray) -> list[float]:
    return [float((reward > rewards).sum() - (reward < rewards).sum()) for reward in rewards]


def flat_surrogate(ratio: Any, advantages: Any) -> Any:
    return (ratio * advantages)[:1], ratio > 9


def without_marks(ratio: Any, advantages: Any) -> Any:
    return ratio * advantages


def numbers_for_marks(ratio: Any, **rest: Any) -> Any:
    return ratio, ratio


def needs_more(ratio: Any, temperature: float) -> Any:
    return ratio, ratio > temperature


def by_place(ratio: Any, /) -> Any:
    return ratio, ratio > 9


def breaks(ratio: Any) -> Any:
    raise KeyError("an old name")


def one_weight(weight: Any, mask: Any) -> Any:
    return weight.sum(), mask


def one_advantage(rewards: np.ndarray) -> float:
    return 1.0


def no_number(rewards: np.ndarray) -> Any:
    return rewards * np.nan


A_NUMBER = 3
CORRECTED = {"old_policy": "recomputed"}


def checked(algorithm: AlgorithmConfig) -> None:
    check_outside_functions(algorithm)
    check_traced(algorithm)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"surrogate": "no_such.module:f"}, "'no_such.module:f' cannot be imported: ModuleNotFou"),
        ({"surrogate": f"{HERE}:by_plaice"}, "no 'by_plaice' in .*; did you mean 'by_place'"),
        ({"surrogate": f"{HERE}:A_NUMBER"}, "A_NUMBER' is int, no function"),
        ({"surrogate": f"{HERE}:needs_more"}, "'temperature'; it is given ratio, logprobs, adv"),
        ({"surrogate": f"{HERE}:by_place"}, "cannot be called: missing .*'ratio'"),
        ({"surrogate": f"{HERE}:breaks"}, "raised KeyError: 'an old name'"),
        ({"surrogate": f"{HERE}:flat_surrogate"}, r"returned float32 of shape \(1,\), bool of"),
        ({"surrogate": f"{HERE}:without_marks"}, r"return two arrays of shape \(8,\), numbers and"),
        ({"surrogate": f"{HERE}:numbers_for_marks"}, r"float32 of shape \(8,\), float32 of"),
        (
            {"correction": f"{HERE}:one_weight", **CORRECTED},
            r"float32 of shape \(\), bool of shape",
        ),
        ({"advantage": f"{HERE}:one_advantage"}, r"float64 of shape \(\) for 8 rewards; return a"),
        ({"advantage": f"{HERE}:no_number"}, "return a finite number for each"),
        ({"advantage": "builtins:dict.fromkeys"}, "cannot be"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(choices: dict[str, Any], said: str) -> None:
    setting = f"algorithm.{next(iter(choices))} '{next(iter(choices.values()))}'"
    with pytest.raises(ConfigError, match=said) as caught:
        checked(replace(GRPO, **choices))
    assert str(caught.value).startswith(setting) and "\n" not in str(caught.value)


def test_an_advantage_is_asked_where_raw_rewards_differ_only() -> None:
    algorithm = replace(GRPO, advantage=f"{HERE}:by_rank")
    checked(algorithm)
    advantage = algorithm.chosen_advantage
    assert advantage not in ("return", "gae") and not algorithm.has_critic
    rewards = np.array([0.0, 1.0, 2.0])
    np.testing.assert_array_equal(group_advantages(rewards, advantage=advantage), [-2.0, 0.0, 2.0])
    equal = group_advantages(rewards, advantage=advantage, raw=np.ones(3))
    np.testing.assert_array_equal(equal, np.zeros(3))


def test_built_in_formulas_can_be_named_too() -> None:
    where = "rlboost_jax.algorithms.surrogates"
    checked(replace(PRESETS["cispo"], surrogate=f"{where}:cispo"))
    checked(replace(RLOO, surrogate=f"{where}:reinforce"))


def test_no_device_is_looked_for() -> None:
    source = (
        "from dataclasses import replace\n"
        "from rlboost_jax.algorithms.grpo import GRPO\n"
        "from rlboost_jax.learner.programs.objective import check_traced\n"
        "named = 'rlboost_jax.algorithms.surrogates:clipped'\n"
        "check_traced(replace(GRPO, surrogate=named))\n"
        "import jax._src.xla_bridge as bridge\n"
        "assert not bridge._backends\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, f"{root}/kernels"])
    subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": path},
        timeout=PATIENCE_SECONDS,
        check=True,
    )


def truncated(weight: Any, mask: Any, correction_high: float) -> Any:
    """The built-in "truncate", for the objective's test."""
    return jnp.minimum(weight, correction_high), mask & (weight > correction_high)
