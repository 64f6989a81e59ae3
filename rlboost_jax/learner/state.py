"""What training changes: parameters, optimizer state, number of updates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlboost_jax.config.records import LearnerConfig, ModelConfig
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.models.sharding import param_shardings, replicated
from rlboost_jax.pytree import pytree


@pytree
class TrainState:
    params: Params  # float32
    opt_state: Any  # optax's, with moments laid out like the parameters
    step: Any  # updates made: an int32 scalar, or its sharding or shape


def learning_rate_schedule(
    config: LearnerConfig, num_steps: int
) -> Callable[[Int[Array, ""]], Float[Array, ""]]:
    """Learning rate of update 0, 1, …

    Rises over `schedule_warmup_steps` updates, the first of which already moves, to
    `learning_rate`; then stays, or falls to 0 at `num_steps`.
    """
    warmup = config.schedule_warmup_steps
    shapes: dict[str, Callable[[Array], Array]] = {
        "constant": jnp.ones_like,
        "linear": lambda done: 1 - done,
        "cosine": lambda done: (1 + jnp.cos(jnp.pi * done)) / 2,
    }
    if config.schedule not in shapes:
        raise ValueError(
            f"learner.schedule is {config.schedule!r}; choose one of {', '.join(shapes)}"
        )

    def rate(step: Int[Array, ""]) -> Float[Array, ""]:
        step = jnp.asarray(step, jnp.float32)
        rise = jnp.minimum(1.0, (step + 1) / max(1, warmup))
        done = jnp.clip((step - warmup) / max(1, num_steps - warmup), 0.0, 1.0)
        return config.learning_rate * rise * shapes[config.schedule](done)

    return rate


def make_optimizer(config: LearnerConfig, num_steps: int) -> optax.GradientTransformation:
    """AdamW after clipping by the global norm; norms' scales and biases do not decay.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adamw(
            learning_rate_schedule(config, num_steps),
            b1=config.beta1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=_decays,
        ),
    )


def state_shardings(
    model: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """The tree of a TrainState with a sharding in place of each array.

    Left to the compiler, the layout of the moments after an update may differ from the one
    before it, and the second update would be compiled again.
    """
    whole, params = replicated(mesh), param_shardings(model, mesh)
    opt_state = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, abstract_params(model)),
        params,
        transform_non_params=lambda _: whole,
    )
    return TrainState(params=params, opt_state=opt_state, step=whole)


def abstract_state(
    model: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of a TrainState: what a checkpoint is restored onto."""
    shapes = jax.eval_shape(lambda params: _fresh(params, optimizer), abstract_params(model))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        state_shardings(model, optimizer, mesh),
    )


def init_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    *,
    consume: bool = False,
) -> TrainState:
    """State before the first update, laid out as `shardings`.

    It holds copies: updates reuse the memory of a state, and the caller may go on using
    `params`, as reference model for one.

    Args:
        consume: the caller does not go on using them, and their memory becomes the state's.
    """
    params = jax.device_put(params, shardings.params)
    fresh = jax.jit(
        lambda params: _fresh(params, optimizer),
        out_shardings=shardings,
        donate_argnums=0 if consume else (),
    )
    return fresh(params)


def _fresh(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(
        params=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),
        step=jnp.zeros((), jnp.int32),
    )


def _decays(params: Params) -> Params:
    def decays(path: tuple[Any, ...], _: Any) -> bool:
        return path[-1].key not in ("scale", "bias")

    return jax.tree_util.tree_map_with_path(decays, params)
