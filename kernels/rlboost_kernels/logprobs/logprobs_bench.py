"""Time and memory of selected log-probabilities with their gradients, in blocks and all at once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rlboost_kernels.logprobs.logprobs_api import selected_logprobs

SHAPES = ((832, 128, 112), (1024, 128, 32768))  # N, E, V

_COLUMNS = "{:36} {:12} {:>11} {:>14} {:>10}"


def logprobs_rows(
    median_seconds: Callable[[Mapping[str, Callable[[], object]], int], dict[str, float]],
    rounds: int,
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
) -> list[str]:
    """Make a heading, and a line for each shape and implementation.

    Args:
        median_seconds: of calls that take turns, as in `rlboost_kernels.bench`.
    """
    heading = ("log-probs and gradients, N E V", "implement.", "median", "temporaries", "speed-up")
    lines = [_COLUMNS.format(*heading)]
    for shape in shapes:
        arguments = _arguments(*shape)
        programs = {
            name: jax.jit(partial(_gradients, implementation=name)).lower(*arguments).compile()
            for name in ("reference", "xla")
        }
        seconds = median_seconds(
            {name: partial(program, *arguments) for name, program in programs.items()}, rounds
        )
        lines += [
            _COLUMNS.format(
                " ".join(map(str, shape)),
                name,
                f"{seconds[name] * 1e3:.2f} ms",
                f"{_temporaries(program) / 1e6:.1f} MB",
                f"{seconds['reference'] / seconds[name]:.2f} x",
            )
            for name, program in programs.items()
        ]
    return lines


def _temporaries(program: jax.stages.Compiled) -> int:
    analysis = program.memory_analysis()
    assert analysis is not None
    return int(analysis.temp_size_in_bytes)


def _gradients(
    hidden: Array, unembedding: Array, tokens: Array, *, implementation: str
) -> tuple[Array, Array]:
    def total(hidden: Array, unembedding: Array) -> Array:
        logprobs, entropy = selected_logprobs(
            hidden, unembedding, tokens, implementation=implementation
        )
        return (logprobs + 0.01 * entropy).sum()

    return jax.grad(total, argnums=(0, 1))(hidden, unembedding)


def _arguments(N: int, E: int, V: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((N, E), np.float32)
    unembedding = rng.standard_normal((E, V), np.float32) * np.float32(E**-0.5)
    tokens = rng.integers(V, size=N, dtype=np.int32)
    return jnp.asarray(hidden), jnp.asarray(unembedding), jnp.asarray(tokens)
