"""Parts shared by policy and critic: sums of gradients, and the update.

Gradients are of undivided sums over tokens. They add up over packed batches and micro-batches, and
only the update divides, by its own number of tokens or responses.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlboost_jax.learner.programs.objective import MAXIMA, Sums
from rlboost_jax.learner.state import TrainState, learning_rate_schedule, on_device
from rlboost_jax.models.parameter_sharding import program_on, replicated
from rlboost_jax.models.params import Params
from rlboost_jax.settings.learner_config import LearnerConfig

Part = tuple[Params, Sums]  # gradients, and sums over their tokens
Apply = Callable[[TrainState, Params, Float[Array, ""]], tuple[TrainState, dict[str, Array]]]


def combine(left: Part, right: Part) -> Part:
    """Add gradients and sums of two parts."""
    (left_gradients, left_sums), (right_gradients, right_sums) = left, right
    sums = {
        key: (jnp.maximum if key in MAXIMA else jnp.add)(left_sums[key], right_sums[key])
        for key in left_sums
    }
    return jax.tree.map(jnp.add, left_gradients, right_gradients), sums


def add_up(parts: Iterable[Part], combine: Callable[[Part, Part], Part]) -> Part:
    """Gradients and sums of all parts, added in their order; at least one."""
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total = combine(total, part)
    return total


def apply_programs(
    learner: LearnerConfig,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    mesh: Mesh,
    *,
    num_updates: int,
) -> tuple[Any, Any]:
    """The compiled `combine`, which consumes its first argument, and `apply`.

    `apply`: (state, gradients, divisor) → (state, metrics); the state is consumed. Metrics:
    `gradient_norm` before clipping, `learning_rate`, `finite` (of gradient and update).
    """
    params, whole = shardings.params, replicated(mesh)
    program = partial(program_on, mesh, donate_argnums=0)
    moments = on_device(shardings.opt_state) if learner.moment_memory == "host" else None
    return program(combine, out_shardings=(params, whole)), program(
        _apply(optimizer, learning_rate_schedule(learner, num_updates), moments),
        in_shardings=(shardings, params, whole),
        out_shardings=(shardings, whole),
    )


def _apply(
    optimizer: optax.GradientTransformation,
    learning_rate: Callable[[Int[Array, ""]], Float[Array, ""]],
    opt_shardings: Any | None,
) -> Apply:
    """Update of the state by the optimizer, from the mean gradient.

    Args:
        opt_shardings: to move the optimizer's state to first; None: it lies where it is needed.
    """

    def apply(
        state: TrainState, gradients: Params, divisor: Float[Array, ""]
    ) -> tuple[TrainState, dict[str, Array]]:
        gradients = jax.tree.map(lambda leaf: leaf / divisor, gradients)
        norm = optax.tree.norm(gradients)  # leaf by leaf where it lies, without a gather
        opt_state = state.opt_state
        if opt_shardings is not None:
            opt_state = jax.device_put(opt_state, opt_shardings)
        updates, opt_state = optimizer.update(gradients, opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "gradient_norm": norm,
            "learning_rate": learning_rate(state.step),
            "finite": jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(updates)),
        }
        return TrainState(params=params, opt_state=opt_state, step=state.step + 1), metrics

    return apply
