"""Advantages, surrogates and corrections of other packages, called in place of the built-in ones.

A function takes by name what it wants of what there is, and a surrogate or a correction the bounds
of the settings besides, so that a built-in one can be named as well:
"rlboost_jax.algorithms.surrogates:clipped".

- A surrogate: `ratio`, `logprobs`, `advantages`, by token. It returns what each token adds to the
  objective, and which tokens its bounds leave without a gradient.
- A correction: `weight`, the ratio of learner to engine at `algorithm.correction_level`, and
  `mask`. It returns the weights of the tokens' losses, and which of them its bounds have changed.
- An advantage: `rewards` of the responses to one prompt, and `raw`, the same without what shapes
  them. It returns one number for each. It is not asked where all raw rewards are equal.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.outside import Outside, loaded

_GIVEN: Final[Mapping[str, tuple[str, ...]]] = {
    "algorithm.advantage": ("rewards", "raw"),
    "algorithm.surrogate": (
        *("ratio", "logprobs", "advantages"),
        *("clip_low", "clip_high", "dual_clip"),
    ),
    "algorithm.correction": ("weight", "mask", "correction_low", "correction_high"),
}


def check_outside_functions(algorithm: AlgorithmConfig) -> None:
    """Raise ConfigError where a function cannot be imported, or cannot be called.

    An advantage is called with rewards of one group.
    """
    for function in algorithm.outside_functions:
        _found(function)
        if function.setting == "algorithm.advantage":
            rewards = np.arange(algorithm.group_size, dtype=np.float64)
            advantages_from_outside(function, rewards, rewards)


def advantages_from_outside(
    function: Outside, rewards: Float[np.ndarray, " G"], raw: Float[np.ndarray, " G"]
) -> Float[np.ndarray, " G"]:
    """Advantages of a group. Raises ConfigError where they are no G numbers."""
    found = _called(function, {"rewards": rewards.copy(), "raw": raw.copy()})
    try:
        advantages = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{function} returned {type(found).__name__}, no numbers") from None
    if advantages.shape != rewards.shape or not np.isfinite(advantages).all():
        raise ConfigError(
            f"{function} returned {_shown(advantages)} for {len(rewards)} rewards; return a finite "
            "number for each"
        )
    return advantages


def arrays_from_outside(function: Outside, given: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    """Call a surrogate or a correction. Raises ConfigError for other than two arrays.

    Args:
        given: all that it may take, by name.
        shape: of the numbers that it has to return, and of the marks.
    """
    found = _called(function, given)
    pair = tuple(found) if isinstance(found, tuple | list) else (found,)
    kinds = [_kind(each) for each in pair if getattr(each, "shape", None) == shape]
    if len(pair) != 2 or kinds not in (["f", "b"], ["V", "b"]):  # V: bfloat16
        raise ConfigError(
            f"{function} returned {', '.join(map(_shown, pair))}; return two arrays of shape "
            f"{shape}, numbers and marks (bool)"
        )
    return pair


def _called(function: Outside, given: Mapping[str, Any]) -> Any:
    call, names = _found(function)
    try:
        return call(**{name: given[name] for name in names})
    except Exception as error:  # a user's function raises anything
        raise ConfigError(f"{function} raised {type(error).__name__}: {error}") from error


@functools.cache
def _found(function: Outside) -> tuple[Callable[..., Any], frozenset[str]]:
    return loaded(function, _GIVEN[function.setting])


def _kind(array: Any) -> str:
    dtype = getattr(array, "dtype", None)
    return "" if dtype is None else np.dtype(dtype).kind


def _shown(value: Any) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{dtype} of shape {shape}"
