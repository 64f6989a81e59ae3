"""JAX's global switches: which are refused, and which are part of an engine's fingerprint.

They come from `JAX_…` variables of the environment or from `jax.config.update`, as in a notebook.
Those that are named nowhere here leave every bit as it is.
"""

from typing import Any, Final

import jax

from rlboost_jax.platform.mistakes import ConfigError

_STOPS: Final = "holds every program up to look at its numbers, and stops at masked ones"
# Name, the only value that programs here are right with, and what another one does.
_FIXED: Final[tuple[tuple[str, tuple[Any, ...], str], ...]] = (
    ("jax_enable_x64", (False,), "makes 64 bits of numbers that have 32 here"),
    ("jax_default_dtype_bits", ("64", 64), "gives numbers other widths"),
    ("jax_numpy_dtype_promotion", ("standard",), "refuses sums of mixed types"),
    ("jax_default_prng_impl", ("threefry2x32",), "draws other random numbers"),
    ("jax_threefry_partitionable", (True,), "draws other random numbers"),
    ("jax_random_seed_offset", (0,), "draws other random numbers"),
    ("jax_enable_custom_prng", (False,), "makes keys of another type"),
    ("jax_legacy_prng_key", ("allow", "warn"), "refuses keys as they are made here"),
    ("jax_disable_jit", (False,), "computes one operation at a time, with other bits"),
    ("jax_debug_nans", (False,), _STOPS),
    ("jax_debug_infs", (False,), _STOPS),
    ("jax_no_tracing", (False,), "forbids to make programs"),
    ("jax_no_execution", (False,), "forbids to run programs"),
    *(
        (f"jax_transfer_guard{way}", (None, "allow", "log"), "forbids copies to and from devices")
        for way in ("", "_host_to_device", "_device_to_device", "_device_to_host")
    ),
)
# How XLA makes programs of operations: equal bits need equal values.
_OF_BITS: Final = (
    ("jax_disable_most_optimizations", False),
    ("jax_optimization_level", "UNKNOWN"),
    ("jax_exec_time_optimization_effort", 0.0),
    ("jax_memory_fitting_effort", 0.0),
    ("jax_memory_fitting_level", "O2"),
    ("jax_allow_f16_reductions", True),
    ("jax_compiler_enable_remat_pass", True),
    ("jax_enable_pgle", False),
    ("jax_explicit_x64_dtypes", "WARN"),
    ("jax_high_dynamic_range_gumbel", False),
    ("jax_pallas_use_mosaic_gpu", True),
    ("jax_softmax_custom_jvp", False),
    ("jax_use_direct_linearize", True),
    ("jax_custom_vjp3", False),
    ("jax_remat3", False),
    ("jax_scan3", False),
    ("jax_refs_to_pins", False),
    ("jax_use_simplified_jaxpr_constants", False),
    ("jax_embedded_constants_max_bytes", 32),
    ("jax_ragged_dot_use_ragged_dot_instruction", True),
    ("jax_ragged_dot_use_gpu_pallas_triton_lowering", False),
    ("jax_cpu_collectives_implementation", "gloo"),
    ("eager_constant_folding", False),
    ("jax_use_shardy_partitioner", True),
)


def check_switches() -> None:
    """Raise ConfigError for the first switch that makes results wrong or irreproducible."""
    for name, allowed, does in _FIXED:
        if (value := _value(name, allowed[0])) not in allowed:
            raise ConfigError(
                f"{name} is {value!r}, which {does}; it must be {allowed[0]!r}: unset "
                f"{name.upper()} in the environment, or undo jax.config.update"
            )


def devices_found() -> list[jax.Device]:
    """Return all devices of JAX. Raises ConfigError where there is none of the kind asked for."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second without a plugin of that kind
        asked = jax.config.values.get("jax_platforms") or "any kind"
        said = (str(error).splitlines() or ["no plugin for it is installed"])[0]
        raise ConfigError(
            f"JAX finds no device of {asked} ({said}); unset JAX_PLATFORMS, or install the extra "
            "of these devices, such as cuda12"
        ) from None


def switches_of_bits() -> str:
    """Return the switches that change bits and are not as JAX has them, as `name=value` each."""
    found = ((name, _value(name, default), default) for name, default in _OF_BITS)
    return " ".join(f"{name}={value}" for name, value, default in found if value != default)


def _value(name: str, default: Any) -> Any:
    """Read a switch in this thread; its default where this release of JAX has no such switch."""
    value = getattr(jax.config, name, jax.config.values.get(name, default))
    shown = "name" if isinstance(default, str) and default.isupper() else "value"  # of an enum
    return getattr(value, shown, value)
