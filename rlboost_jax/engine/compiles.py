"""Count of the programs this process has compiled: it must not grow once an engine is warm."""

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_count = 0


def num_compiles() -> int:
    """Programs compiled, or read from the persistent cache, since this module was imported."""
    return _count


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _count
    if event == _COMPILED:
        _count += 1


jax.monitoring.register_event_duration_secs_listener(_listen)
