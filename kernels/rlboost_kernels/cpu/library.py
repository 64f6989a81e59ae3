"""The compiled library of the `cpu` implementation: loading it, or saying why it is missing.

The environment variable RLBOOST_KERNELS_CPU_ISA (portable, avx2 or avx512) forces an instruction
set; one that this machine does not have is an error. Without it the best one is used.
"""

import ctypes
import os
from functools import lru_cache

import jax

from rlboost_kernels.cpu.build import LIBRARY, sources_digest

BUILD_COMMAND = "python -m rlboost_kernels.cpu"
ISA_VARIABLE = "RLBOOST_KERNELS_CPU_ISA"
ISAS = ("portable", "avx2", "avx512")
TARGETS = (
    "rlboost_ragged_paged_attention",
    "rlboost_update_kv_pages",
    "rlboost_copy_kv_pages",
    "rlboost_linear_read",
    "rlboost_matmul",
)


def why_missing() -> str | None:
    """Why the library cannot be used, with the command that helps; None if it can.

    Raises:
        ValueError: RLBOOST_KERNELS_CPU_ISA is no instruction set of ours or of this machine.
    """
    return _load()[1]


def isa() -> str:
    """The instruction set in use. The library must be there."""
    name, reason = _load()
    assert name is not None, reason
    return name


@lru_cache(maxsize=1)
def _load() -> tuple[str | None, str | None]:
    """Load the library and register its calls with XLA; the instruction set, or what is wrong."""
    if not LIBRARY.exists():
        return None, f"its library has not been built; with a C++ compiler, run {BUILD_COMMAND}"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.rlboost_sources.restype = ctypes.c_char_p
        built_from = library.rlboost_sources().decode()
    except (OSError, AttributeError) as error:
        return None, f"its library cannot be loaded ({error}); run {BUILD_COMMAND}"
    if built_from != sources_digest():
        return None, f"its library was built from other sources; run {BUILD_COMMAND}"
    name = _use_isa(library)
    try:
        for target in TARGETS:
            call = jax.ffi.pycapsule(getattr(library, target))
            jax.ffi.register_ffi_target(target, call, platform="cpu")
    except jax.errors.JaxRuntimeError as error:  # an older jaxlib than the one of the headers
        return None, f"this jaxlib does not take its library ({error}); run {BUILD_COMMAND}"
    return name, None


def _use_isa(library: ctypes.CDLL) -> str:
    wanted = os.environ.get(ISA_VARIABLE, "")
    if wanted and wanted not in ISAS:
        raise ValueError(f"{ISA_VARIABLE} is {wanted!r}; it must be one of {', '.join(ISAS)}")
    library.rlboost_use_isa.argtypes = [ctypes.c_char_p]
    library.rlboost_use_isa.restype = ctypes.c_char_p
    used = library.rlboost_use_isa(wanted.encode())
    if used is None:
        raise ValueError(f"{ISA_VARIABLE} is {wanted!r}, which this machine does not have")
    return str(used.decode())
