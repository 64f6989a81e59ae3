"""How parameters lie on the device mesh: an axis of the mesh for each axis of a parameter.

Mesh axes: `data` replicates the parameters and splits the batch, `fsdp` splits both,
`tensor` splits heads, hidden width, experts and vocabulary. An axis of an array that the mesh axis
does not divide stays whole, so that any model runs on any mesh.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from rlboost_jax.models.compiler_options import same_bits
from rlboost_jax.models.params import (
    Params,
    abstract_params,
    flatten_params,
    unflatten_params,
)
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.model_config import ModelConfig

AXES: Final = ("data", "fsdp", "tensor")
BATCH: Final = ("data", "fsdp")  # mesh axes that share out the rows of a batch

# Products of a layer, and the mesh axes of their matrices [in, out].
_MATRICES: Final[dict[str, tuple[str, str]]] = {
    "attention.query": ("fsdp", "tensor"),
    "attention.key": ("fsdp", "tensor"),
    "attention.value": ("fsdp", "tensor"),
    "attention.output": ("tensor", "fsdp"),
    "mlp.gate": ("fsdp", "tensor"),
    "mlp.up": ("fsdp", "tensor"),
    "mlp.down": ("tensor", "fsdp"),
}
# End of the parameter's name → mesh axes of its last axes. Others (norms) are replicated.
RULES: Final[dict[str, tuple[str | None, ...]]] = {
    "embedding.table": ("tensor", "fsdp"),
    **{f"{name}.kernel": axes for name, axes in _MATRICES.items()},
    **{f"{name}.lora_a": (axes[0], None) for name, axes in _MATRICES.items()},
    **{f"{name}.lora_b": (None, axes[1]) for name, axes in _MATRICES.items()},
    "attention.query.bias": ("tensor",),
    "attention.key.bias": ("tensor",),
    "attention.value.bias": ("tensor",),
    "mlp.router.kernel": ("fsdp", None),
    "mlp.experts.gate": ("tensor", "fsdp", None),  # whole experts on a device, see `experts.py`
    "mlp.experts.up": ("tensor", "fsdp", None),
    "mlp.experts.down": ("tensor", None, "fsdp"),
    "head.kernel": ("fsdp", "tensor"),
}


class NotEnoughDevices(Mistake, ValueError):
    """A mesh needs more devices than there are."""


def make_mesh(shape: tuple[int, int, int]) -> Mesh:
    """A mesh of the first data · fsdp · tensor devices, its axes left to the compiler."""
    needed, devices = shape[0] * shape[1] * shape[2], jax.devices()
    if needed > len(devices):
        raise NotEnoughDevices(
            f"{needed} devices needed by learner.mesh={shape}, {len(devices)} found; "
            "make the mesh smaller or start on more devices"
        )
    return jax.make_mesh(
        shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:needed]
    )


def engine_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh with the learner's axes; only `tensor` has more than one device."""
    grid = np.array(devices).reshape(1, 1, -1)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def param_shardings(config: ModelConfig, mesh: Mesh | AbstractMesh) -> Params:
    """The tree of `init_params` with a sharding in place of each array."""
    leaves = flatten_params(abstract_params(config))
    return unflatten_params(
        {name: NamedSharding(mesh, _spec(name, leaf.shape, mesh)) for name, leaf in leaves.items()}
    )


def table_spec(shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Partition spec of the embedding's table [V, E]."""
    return _spec("embedding.table", shape, mesh)


def unembedding_spec(shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Partition spec of the matrix [E, V] of logits, the embedding's table or its own."""
    return _spec("head.kernel", shape, mesh)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """First axis (rows, or tokens of whole rows) over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def placed(tree: Any, mesh: Mesh) -> Any:
    """Place a tree's host arrays on a mesh of which this process has a part.

    Matrices are rows of a batch and are split, numbers are everywhere. Every process passes equal
    arrays.
    """

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | np.generic):
            return leaf
        return laid_out(leaf, batch_sharding(mesh) if leaf.ndim else replicated(mesh))

    return jax.tree.map(place, tree)


def laid_out(array: Any, sharding: Sharding) -> jax.Array:
    """Lay a host array out over devices: all processes pass the same, and each holds its part."""
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def program_on(mesh: Mesh, function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` of a function whose arguments may be host arrays, on any mesh.

    On a mesh of several processes `jax.jit` takes arrays of that mesh only.
    """
    options["compiler_options"] = same_bits(mesh.devices.flat[0])
    program = jax.jit(function, **options)
    return _OfSeveralProcesses(program, mesh) if mesh.is_multi_process else program


class _OfSeveralProcesses:
    def __init__(self, program: Any, mesh: Mesh) -> None:
        self._program, self._mesh = program, mesh

    def __call__(self, *args: Any) -> Any:
        return self._program(*placed(args, self._mesh))

    def lower(self, *args: Any) -> Any:
        return self._program.lower(*placed(args, self._mesh))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    axes = next((axes for end, axes in RULES.items() if name.endswith(end)), ())
    stacked = len(shape) - len(axes)  # leading axes that no rule speaks of: the layers
    divided = [
        axis if axis and size % mesh.shape[axis] == 0 else None
        for size, axis in zip(shape[stacked:], axes, strict=True)
    ]
    return PartitionSpec(*[None] * stacked, *divided)
