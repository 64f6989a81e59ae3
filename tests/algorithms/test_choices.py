"""A misspelt choice is an error, never another algorithm."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.advantages import group_advantages
from rlboost_jax.algorithms.corrections import correction_weights
from rlboost_jax.algorithms.kl import kl_estimates, kl_losses, kl_rewards

ROW = np.zeros((1, 3), np.float32)
MASK = np.ones((1, 3), bool)
TYPO: Any = "typo"


def corrected(**choices: Any) -> object:
    named = {"correction": "mask", "level": "token", **choices}
    segments = jnp.zeros((1, 3), jnp.int32)
    return correction_weights(
        *map(jnp.asarray, (ROW, ROW, MASK)), segments, low=0.5, high=2.0, **named
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: group_advantages(np.array([0.0, 1.0]), advantage=TYPO),
        lambda: group_advantages(np.array([0.0, 1.0]), advantage="group_std", deviation=TYPO),
        lambda: kl_estimates(*map(jnp.asarray, (ROW, ROW, MASK)), estimator=TYPO),
        lambda: kl_losses(*map(jnp.asarray, (ROW, ROW, MASK, ROW)), estimator="k1", gradient=TYPO),
        lambda: kl_rewards(ROW[0], ROW[0], estimator=TYPO, coefficient=1.0),
        lambda: corrected(correction=TYPO),
        lambda: corrected(level=TYPO),
    ],
)
def test_a_name_that_does_not_exist(call: Any) -> None:
    with pytest.raises((AssertionError, KeyError, TypeError)):  # with and without checked types
        call()


def test_those_that_do_are_none() -> None:
    corrected()
