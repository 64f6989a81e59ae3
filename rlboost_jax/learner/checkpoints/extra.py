"""JSON values of a checkpoint, beside its arrays."""

from collections.abc import Mapping
from typing import Any

from rlboost_jax import messages
from rlboost_jax.learner.checkpoints.base import Base
from rlboost_jax.learner.kept_versions import DIGESTS


def checkpoint_extra(
    window: messages.WindowState | None,
    prompts_used: int,
    base: Base | None = None,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Build the JSON values of a checkpoint.

    Args:
        prompts_used: of the prompt stream, by the steps so far.
        base: that its adapters were trained on.
        versions: digests of the older versions that go with it, by number.
    """
    return {
        **({"base": base.digest} if base else {}),
        **({DIGESTS: dict(versions)} if versions else {}),
        "prompts_used": prompts_used,
        "window": None
        if window is None
        else {
            "seconds": window.seconds,
            "memory": {str(count): seconds for count, seconds in window.memory.items()},
            "instance_cap": window.instance_cap,
        },
    }


def window_of(extra: Mapping[str, Any]) -> messages.WindowState | None:
    """Window state of the controller in a checkpoint: the inverse of `checkpoint_extra`."""
    window = extra["window"]
    if window is None:
        return None
    return messages.WindowState(
        seconds=window["seconds"],
        memory={int(count): seconds for count, seconds in window["memory"].items()},
        instance_cap=window["instance_cap"],
    )
