"""Programs that are compiled in a quarter of the time, for what is compared to a tolerance.

Without most optimizations LLVM takes little time. What is left goes into XLA's newer way of
writing loops, and into cutting a program into parts to compile them side by side.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
from jax._src import compiler

_WANTED: dict[str, bool | int] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def compiles_unoptimized() -> bool:
    """Whether the test that runs has its programs compiled so."""
    return bool(jax.config.values["jax_disable_most_optimizations"])


@cache
def options() -> dict[str, bool | int]:
    """Options that this version of XLA has."""
    return {name: value for name, value in _WANTED.items() if _known(name, value)}


def _known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def add_options() -> None:
    """Make them options of all programs that are compiled unoptimized from now on."""
    compile_options: Callable[..., Any] = compiler.get_compile_options

    def with_ours(*args: Any, env_options_overrides: Any = None, **kwargs: Any) -> Any:
        made = compile_options(*args, env_options_overrides=env_options_overrides, **kwargs)
        optimized = made.executable_build_options.debug_options.xla_backend_optimization_level
        if not optimized and not env_options_overrides:  # else the program brings its own
            made.env_option_overrides = [*made.env_option_overrides, *options().items()]
        return made

    compiler.get_compile_options = with_ours


def environment(flags: str) -> dict[str, str]:
    """For a process that compiles all its programs so; `flags` are those that XLA has otherwise."""
    ours = [f"--{name}={str(value).lower()}" for name, value in options().items()]
    return {"JAX_DISABLE_MOST_OPTIMIZATIONS": "True", "XLA_FLAGS": " ".join([*ours, flags])}
