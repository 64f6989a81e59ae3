"""The engine's matrices in the order in which the CPU's products read them: `pack_panels`.

Every other product, and those of shares of matrices, take them as they are stored. No bit
depends on it. The order is that for products in the model's dtype, whatever matrices are loaded in.
"""

from functools import partial
from typing import Any

import jax
from jaxtyping import Array
from rlboost_kernels import active, fits_panels, pack_panels

from rlboost_jax.engine.devices import Devices
from rlboost_jax.models.forward import UNEMBEDDING
from rlboost_jax.models.params import Params


def reads_panels(devices: Devices) -> bool:
    """Whether products on these devices are faster with packed matrices."""
    on_cpu = devices.first.platform == "cpu" and not devices.split
    return on_cpu and active()["matmul"].startswith("cpu")


def with_panels(params: Params, dtype: str) -> Params:
    """Unstacked parameters with every matrix packed that consists of whole panels.

    A table that is also the head's matrix is needed twice, by rows and in panels.

    Args:
        dtype: of the products.
    """
    table = params["embedding"]["table"]
    tied = "kernel" not in params["head"] and fits_panels(table.shape[0])
    more = {UNEMBEDDING: _in_panels(table, dtype, transposed=True)} if tied else {}

    def packed(path: tuple[Any, ...], leaf: Array) -> Array:
        whole = path[-1].key == "kernel" and leaf.ndim == 2 and fits_panels(leaf.shape[1])
        return _in_panels(leaf, dtype, transposed=False) if whole else leaf

    parts = {name: params[name] for name in ("layers", "head")}
    return {**params, **jax.tree_util.tree_map_with_path(packed, parts), **more}


@partial(jax.jit, static_argnames=("dtype", "transposed"))
def _in_panels(matrix: Array, dtype: str, *, transposed: bool) -> Array:
    return pack_panels(matrix, transposed=transposed, dtype=dtype)
