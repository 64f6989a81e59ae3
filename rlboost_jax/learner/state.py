"""The train state: parameters, optimizer state, number of updates."""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from rlboost_jax.learner.pytree import pytree
from rlboost_jax.models.adapters import trained_part
from rlboost_jax.models.parameter_sharding import laid_out, param_shardings, replicated
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.model_config import ModelConfig

HOST_MEMORY: Final = "pinned_host"  # as JAX calls it


@pytree
class TrainState:
    params: Params  # float32; with adapters they alone, see models/adapters.py
    opt_state: Any  # optax's, with moments laid out like the parameters, in `moment_dtype`
    step: Any  # updates made: an int32 scalar, or its sharding or shape
    critic: Any = None  # a TrainState of its own, in runs that have one


class NoHostMemory(Mistake, ValueError):
    """Moments are configured for host memory that the devices cannot access."""


def learning_rate_schedule(
    config: LearnerConfig, num_updates: int
) -> Callable[[Int[Array, ""]], Float[Array, ""]]:
    """Learning rate of update 0, 1, …

    Rises over `schedule_warmup_steps` updates to `learning_rate` (above 0 from the first on);
    then stays, or falls to 0 at `num_updates`.
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
        done = jnp.clip((step - warmup) / max(1, num_updates - warmup), 0.0, 1.0)
        return config.learning_rate * rise * shapes[config.schedule](done)

    return rate


def make_optimizer(config: LearnerConfig, num_updates: int) -> optax.GradientTransformation:
    """AdamW after clipping by the global norm; norms' scales and biases do not decay.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adamw(
            learning_rate_schedule(config, num_updates),
            b1=config.beta1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=_decays,
        ),
    )
    return _kept_as(config.moment_dtype, optimizer)


def _kept_as(dtype: str, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimizer in float32, with its state rounded to `dtype` between updates."""
    if dtype == "float32":
        return optimizer

    def cast(tree: Any, dtype: str) -> Any:
        def cast_leaf(leaf: Array) -> Array:
            return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(cast_leaf, tree)

    def init(params: Any) -> Any:  # parameters, or what optax puts in their place
        return cast(optimizer.init(params), dtype)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients, cast(state, "float32"), params)
        return updates, cast(state, dtype)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def state_shardings(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    moment_memory: str = "device",
) -> TrainState:
    """The tree of a TrainState with a sharding in place of each array.

    Args:
        moment_memory: see `shardings_of`.
    """
    shapes = trained_part(model, abstract_params(model))
    shardings = trained_part(model, param_shardings(model, mesh))
    return shardings_of(shapes, shardings, optimizer, mesh, moment_memory=moment_memory)


def shardings_of(
    shapes: Params,
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    moment_memory: str,
) -> TrainState:
    """Shardings of a TrainState for any tree of parameters.

    Left to the compiler, the layout of the moments after an update may differ from the one
    before it, and the second update would be compiled again.

    Args:
        shapes: of the parameters.
        params: a sharding for each of them.
        moment_memory: "device", or "host" for moments in page-locked memory of the host that
            the device reads and writes itself.

    Raises:
        NoHostMemory: the devices of the mesh have no such memory.
    """
    whole, moments = replicated(mesh), params
    if moment_memory == "host":
        _check_host_memory(mesh)
        moments = jax.tree.map(lambda leaf: leaf.with_memory_kind(HOST_MEMORY), params)
    opt_state = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, shapes),
        moments,
        transform_non_params=lambda _: whole,
    )
    return TrainState(params=params, opt_state=opt_state, step=whole)


def on_device(shardings: Any) -> Any:
    """The same shardings in the devices' own memory, where an update is computed."""

    def moved(leaf: NamedSharding) -> NamedSharding:
        return leaf.with_memory_kind("device") if leaf.memory_kind == HOST_MEMORY else leaf

    return jax.tree.map(moved, shardings)


def _check_host_memory(mesh: Mesh) -> None:
    device = mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    if HOST_MEMORY not in kinds:
        raise NoHostMemory(
            f"learner.moment_memory is 'host'; {device.platform} devices reach "
            f"{', '.join(sorted(kinds))} and no {HOST_MEMORY}: set it to 'device'"
        )


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    moment_memory: str = "device",
) -> TrainState:
    """Shapes, dtypes and shardings of a TrainState that a checkpoint is restored onto."""
    shardings = state_shardings(model, optimizer, mesh, moment_memory=moment_memory)
    return abstract_of(trained_part(model, abstract_params(model)), optimizer, shardings)


def abstract_of(
    shapes: Params, optimizer: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
    """Shapes, dtypes and shardings of a TrainState of parameters with these shapes."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(lambda params: _fresh(params, optimizer), shapes),
        shardings,
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
    params = jax.tree.map(_moved, params, shardings.params)
    fresh = jax.jit(
        lambda params: _fresh(params, optimizer),
        out_shardings=shardings,
        donate_argnums=0 if consume else (),
    )
    return fresh(params)


def _moved(leaf: Any, sharding: NamedSharding) -> Any:
    """Place a leaf, like `jax.device_put`, which rejects devices of other processes."""
    if sharding.is_fully_addressable or not isinstance(leaf, np.ndarray):
        return jax.device_put(leaf, sharding)
    return laid_out(leaf, sharding)


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
