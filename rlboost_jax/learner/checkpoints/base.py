"""Base parameters of a run with adapters, which never change: `<workdir>/base`, written once.

Checkpoints hold adapters alone. The run keeps its own copy of the base beside them, in the dtype
of activations, rather than reading its source again: it goes on, exports and evaluates although
that has moved or changed, and adapters never meet a base that they were not trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rlboost_jax.learner.checkpoints.reading import (
    CheckpointBroken,
    CheckpointNotFound,
    read_params,
)
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.models.adapters import base_model, joined, trained_part
from rlboost_jax.models.parameter_sharding import param_shardings
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.model_config import ModelConfig

FOLDER: Final = "base"


class OtherBase(Mistake, RuntimeError):
    """The base in the workdir is missing, damaged, or not the one its adapters were trained on."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """Base parameters of a run that publishes adapters."""

    params: Params  # over the mesh
    digest: str


def kept_base(
    model: ModelConfig, workdir: Path, mesh: Mesh, begin: Callable[[], Params], *, resumed: bool
) -> Params:
    """Read the base over the mesh, in `model.dtype`; write it at the first start.

    Every process of a trainer calls this.

    Args:
        begin: makes it, in any dtype; called at the first start only.
        resumed: whether there are adapters that were trained on it.

    Raises:
        OtherBase: there are, and it is gone; or it is damaged.
    """
    shardings = param_shardings(base_model(model), mesh)
    with Checkpoints(workdir / FOLDER, keep=1) as kept:
        if kept.latest() is not None:
            place = jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=sharding
                ),
                _abstract(model),
                shardings,
            )
            try:
                restored: Params = kept.restore(0, {"params": place})[0]["params"]
            except CheckpointBroken as error:
                raise OtherBase(
                    f"{workdir / FOLDER} is damaged: {error.reason}; bring it back from a copy, or "
                    "begin in a new --workdir"
                ) from None
            return restored
        if resumed:
            raise OtherBase(
                f"{workdir / FOLDER} is gone, which the adapters in {workdir / 'checkpoints'} were "
                "trained on; bring it back, or begin in a new --workdir"
            )
        base = begin()
        if any(leaf.dtype != model.dtype for leaf in jax.tree.leaves(base)):
            base = jax.jit(
                lambda params: jax.tree.map(lambda leaf: leaf.astype(model.dtype), params),
                out_shardings=shardings,
            )(base)
        kept.save(0, {"params": base}, {})
        kept.wait()
        return base


def check_same(digest: str, extra: dict[str, Any], workdir: Path) -> None:
    """Raise OtherBase if a checkpoint's adapters belong to another base.

    Args:
        extra: of the checkpoint. That of step 0 does not say: nothing is trained yet.
    """
    if extra.get("base", digest) != digest:
        raise OtherBase(
            f"{workdir / FOLDER} has digest {digest[:12]}…, and the adapters of the newest "
            f"checkpoint were trained on {extra['base'][:12]}…; bring that back, or begin in a new "
            "--workdir"
        )


def read_policy(model: ModelConfig, workdir: Path, folder: Path, step: int) -> Params:
    """Read all parameters after `step` updates, adapters apart, on the default device.

    Args:
        folder: of checkpoints, such as `workdir / "checkpoints"`.

    Raises:
        CheckpointNotFound, OtherBase.
    """
    trained = read_params(folder, step, trained_part(model, abstract_params(model)))
    if not model.lora.rank:
        return trained
    try:
        base = read_params(workdir / FOLDER, 0, _abstract(model))
    except CheckpointNotFound as error:
        raise OtherBase(f"adapters alone are no model: {error}") from None
    return joined(base, trained)


def _abstract(model: ModelConfig) -> Params:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(model.dtype)),
        abstract_params(base_model(model)),
    )
