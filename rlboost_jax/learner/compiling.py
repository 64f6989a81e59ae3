"""Signs of progress while a program compiles, however long that takes."""

import functools

import jax

from rlboost_jax.platform.pulse import PULSE

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # what comes next is the compiler


@functools.cache  # once in a process
def show_compiles() -> None:
    """Report to the process's pulse when its main thread begins to compile."""
    jax.monitoring.register_event_duration_secs_listener(_listen)


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event == LOWERED:
        PULSE.compiling()
