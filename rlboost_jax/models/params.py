"""Parameters as a plain nested dict of arrays, and functions on them.

`params["layers"]` holds the leaves of all layers stacked on axis 0. The dotted names of
`flatten_params` ("layers.attention.query.kernel") are those of snapshots and digests.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from rlboost_jax.models.decoder import Decoder
from rlboost_jax.settings.model_config import LAYERS, ModelConfig

Params = dict[str, Any]  # nested; leaves are arrays, or ShapeDtypeStructs of them


def init_params(
    config: ModelConfig,
    seed: int,
    *,
    shardings: Params | None = None,
    of: Callable[[str], bool] = lambda name: True,
) -> Params:
    """Fresh float32 parameters of a model trained from scratch.

    Drawn on the host, leaf by leaf, from the seed and the leaf's name: nothing is compiled,
    and the values depend on neither the devices nor the version of JAX.

    Args:
        seed: not negative.
        shardings: where each leaf goes; None puts all on the default device.
        of: whether a leaf of that dotted name is among them.
    """

    def draw(name: str, declared: nnx.Variable) -> np.ndarray:
        metadata = declared.get_metadata()
        if "start" in metadata:
            return np.full(declared.shape, metadata["start"], np.float32)
        rng = np.random.default_rng([seed, *name.encode()])
        if "bound" in metadata:
            uniform = 2 * rng.random(declared.shape, np.float32) - 1
            return np.float32(metadata["bound"]) * uniform
        return np.float32(metadata["std"]) * rng.standard_normal(declared.shape, np.float32)

    leaves = {n: draw(n, leaf) for n, leaf in _declared(config).items() if of(n)}
    return jax.device_put(unflatten_params(leaves), shardings)


def abstract_params(config: ModelConfig) -> Params:
    """The tree of `init_params` with shapes and dtypes in place of arrays."""
    return unflatten_params(
        {
            name: jax.ShapeDtypeStruct(declared.shape, declared.dtype)
            for name, declared in _declared(config).items()
        }
    )


def flatten_params(params: Params) -> dict[str, Any]:
    """Leaves by dotted name, sorted by name."""

    def walk(prefix: str, node: Any) -> list[tuple[str, Any]]:
        if not isinstance(node, Mapping):
            return [(prefix, node)]
        return [leaf for k in node for leaf in walk(f"{prefix}.{k}" if prefix else k, node[k])]

    return dict(sorted(walk("", params)))


def unflatten_params(leaves: Mapping[str, Any]) -> Params:
    """The inverse of `flatten_params`."""
    params: Params = {}
    for name, leaf in leaves.items():
        *folders, last = name.split(".")
        node = params
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return params


def unstack_layers(params: Params) -> Params:
    """The same parameters with `layers` as a tuple of one dict per layer."""
    num_layers = jax.tree.leaves(params[LAYERS])[0].shape[0]
    layers = tuple(
        jax.tree.map(lambda leaf, i=i: leaf[i], params[LAYERS]) for i in range(num_layers)
    )
    return {**params, LAYERS: layers}


def params_digest(
    params: Params,
    *,
    base: str = "",
    pieces: Callable[[str, Any], Iterable[np.ndarray]] = lambda name, leaf: (np.asarray(leaf),),
) -> str:
    """SHA-256 over name, dtype, shape and little-endian bytes of every leaf, by name.

    Args:
        base: digest of the parameters that these are added to.
        pieces: of a leaf by its name: consecutive, on the host. One is needed at a time.
    """
    digest = hashlib.sha256(base.encode())
    for name, leaf in flatten_params(params).items():
        digest.update(f"{name} {np.dtype(leaf.dtype)} {tuple(leaf.shape)}\n".encode())
        for piece in pieces(name, leaf):
            digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@functools.cache
def _declared(config: ModelConfig) -> dict[str, nnx.Variable]:
    """The modules' own parameters by dotted name, with shapes and metadata but no values."""
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    leaves = nnx.to_flat_state(nnx.state(decoder, nnx.Param))
    return {".".join(map(str, path)): leaf for path, leaf in leaves}
