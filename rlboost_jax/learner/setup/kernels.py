"""Check that the kernels named in the configuration can run on the learner's devices.

What a start on a GPU chooses was tried there (`qualification/`). This is for the rest: a run that
was begun on a GPU and goes on on a CPU, and what a person names.
"""

from collections.abc import Callable
from typing import assert_never

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rlboost_kernels.cpu import library
from rlboost_kernels.grouped.grouped_api import choose_grouped

from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.packed_attention import why_not
from rlboost_jax.qualification.learner_start import KernelNotAvailable
from rlboost_jax.settings.run_config import RunConfig


def check(run: RunConfig, mesh: Mesh) -> None:
    """Raise KernelNotAvailable, with one line that says what to change."""
    reasons = {"attention": _of_attention(run, mesh), "experts": _of_experts(run)}
    for name, reason in reasons.items():
        if reason:
            raise KernelNotAvailable(
                f"learner.{name} is {getattr(run.learner, name)!r}: {reason}; take a device of the "
                f"kind that the run was begun on, or begin a run with --config.learner.{name}=auto"
            )


def without_compiled(
    run: RunConfig, *, missing: Callable[[], str | None] = library.why_missing
) -> str:
    """Line on what a CPU run falls back to without compiled kernels; "" if it has them.

    Args:
        missing: why they are not.
    """
    names = {run.engine.attention, run.learner.attention}
    if jax.default_backend() != "cpu" or "auto" not in names or not (reason := missing()):
        return ""
    return f"kernels on CPU: plain JAX, which is slower than those in C++: {reason}"


def _of_attention(run: RunConfig, mesh: Mesh) -> str:
    """Reason why the named attention cannot be computed here; "" if it can."""
    match run.learner.attention:
        case "triton" | "cudnn" as kernel:
            return why_not(kernel, base_model(run.model), mesh, jax.default_backend())
        case "auto" | "paged" | "dense" | "chunked":
            return ""
        case other:
            assert_never(other)


def _of_experts(run: RunConfig) -> str:
    """Reason why the named products of experts cannot be computed here; "" if they can."""
    model, named = base_model(run.model), run.learner.experts
    if not model.num_experts or named == "auto":
        return ""
    try:
        choose_grouped(named, jnp.dtype(model.dtype), model.embed_dim, model.expert_dim)
    except NotImplementedError as error:
        return str(error)
    return ""
