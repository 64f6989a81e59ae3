"""Compiling a program is a sign of life, however long it takes."""

import functools

import jax

from rlboost_jax.supervision.pulse import PULSE

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # what comes next is the compiler


@functools.cache  # once in a process
def show_compiles() -> None:
    """Have the pulse of this process say when its main thread begins to compile."""
    jax.monitoring.register_event_duration_secs_listener(_listen)


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event == LOWERED:
        PULSE.compiling()
