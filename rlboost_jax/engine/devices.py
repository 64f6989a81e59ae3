"""One engine's devices: which share of a model each has, and where its arrays lie.

With several (`engine.tensor_parallel`) a program runs on each under `jax.shard_map`, on its share
of the parameters and of the heads of the pools; its inputs and what is sampled are the same
everywhere. With one, a program is just compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array

from rlboost_jax.models.compiler_options import same_bits
from rlboost_jax.models.parameter_sharding import NotEnoughDevices, engine_mesh, param_shardings
from rlboost_jax.models.params import Params, abstract_params, unstack_layers
from rlboost_jax.models.tensor_parallel import AXIS
from rlboost_jax.settings.memory_estimates import share_of
from rlboost_jax.settings.model_config import ModelConfig

WHOLE: Final = PartitionSpec()  # the same on every device
HEADS: Final = PartitionSpec(None, None, AXIS)  # of a layer's pool
# Arguments beyond four fifths of a device look to XLA for GPU like too little memory. To save the
# logits it then multiplies by the unembedding anew for each that reads them: five times a step,
# and with a smaller pool once. A step's own arrays are small; nothing of it is worth that.
_WITHOUT_REMATERIALIZATION: Final = {"xla_disable_hlo_passes": "rematerialization"}
# All decode steps of a call are one CUDA graph, loop included: without the last two XLA launches
# each kernel of each step, some 500 of a few microseconds. 1.3 times the tokens per second of a
# model of 0.6B on an H200. The others are XLA's own choice. Where a driver has no such graphs, XLA
# does without.
_ONE_GRAPH: Final = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
    ),
    "xla_gpu_graph_min_graph_size": 1,
}


class Devices:
    """Devices that an engine runs on, one or several that share a model.

    Attributes:
        first: of the devices.
        split: whether there are several.
        share: the model as each device has it.
    """

    def __init__(
        self, model: ModelConfig, count: int, found: Sequence[jax.Device] | None = None
    ) -> None:
        """Take the first `count` devices of `found`; None: of all devices.

        Raises:
            NotEnoughDevices: there are fewer.
        """
        found = jax.devices() if found is None else found
        if len(found) < count:
            raise NotEnoughDevices(
                f"engine.tensor_parallel is {count}, {len(found)} devices found; lower it or "
                "start on more devices"
            )
        self.first, self.split, self._count = found[0], count > 1, count
        self.share = share_of(model, count)
        self._model = model
        self._mesh: Mesh | None = engine_mesh(found[:count]) if count > 1 else None

    @property
    def kind(self) -> str:
        """Number and kind of the devices, for people, such as "2 x NVIDIA H100 80GB HBM3"."""
        kind = self.first.device_kind
        return f"{self._count} x {kind}" if self.split else kind

    def program(
        self,
        function: Callable[..., Any],
        in_specs: Any,
        out_specs: Any,
        donated: tuple[int, ...] = (),
    ) -> Any:
        """Compile `function` to run on all of the devices.

        Args:
            donated: arguments that are written in place.
        """
        if self._mesh is not None:
            # A kernel's results are not known to vary by device: `rlboost_kernels.sharding`.
            function = jax.shard_map(
                function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            )
        options = same_bits(self.first)
        if options is not None:
            options = {**options, **_WITHOUT_REMATERIALIZATION, **_ONE_GRAPH}
        return jax.jit(function, donate_argnums=donated, compiler_options=options)

    def leaf_specs(self) -> tuple[PartitionSpec, ...]:
        """Partition spec of each leaf of the unstacked parameters."""
        places = jax.tree.leaves(self.places())
        return tuple(place.spec if self.split else WHOLE for place in places)

    def places(self) -> Params:
        """Device or sharding of each leaf of the unstacked parameters."""
        mesh = self._mesh
        if mesh is None:
            abstract = jax.eval_shape(unstack_layers, abstract_params(self._model))
            return jax.tree.map(lambda _: self.first, abstract)
        stacked = param_shardings(self._model, mesh)
        layer = jax.tree.map(
            lambda place: NamedSharding(mesh, PartitionSpec(*place.spec[1:])), stacked["layers"]
        )
        return {**stacked, "layers": (layer,) * self._model.num_layers}

    def everywhere(self) -> jax.Device | Sharding:
        """Placement for values that every device needs whole."""
        return self.first if self._mesh is None else NamedSharding(self._mesh, WHOLE)

    def zero_pools(self, part: jax.ShapeDtypeStruct) -> tuple[Array, ...]:
        """A pool of zeros per layer; each device has a part of that shape."""
        layers = range(self._model.num_layers)
        if self._mesh is None:
            with jax.default_device(self.first):
                pools = tuple(jnp.zeros(part.shape, part.dtype) for _ in layers)
            return jax.device_put(pools, self.first)
        place = NamedSharding(self._mesh, HEADS)
        pages, tokens, heads, width = part.shape
        shape = (pages, tokens, heads * self._count, width)
        return tuple(jnp.zeros(shape, part.dtype, device=place) for _ in layers)
