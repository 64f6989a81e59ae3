"""The compiled library of the `cpu` implementation: loading it, or saying why it is missing.

The environment variable RLBOOST_KERNELS_CPU_ISA (portable, avx2, avx512 or avx512_bf16) forces an
instruction set; one that this machine does not have is an error. Without it the best one is used.
"""

import ctypes
import os
from functools import lru_cache
from pathlib import Path

import jax

from rlboost_kernels.cpu.build import (
    FOLDER,
    CannotBuild,
    interface_version,
    replaceable,
    sources_digest,
    versions,
)

BUILD_COMMAND = "python -m rlboost_kernels.cpu"
ISA_VARIABLE = "RLBOOST_KERNELS_CPU_ISA"
ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
PAIRS_ISA = "avx512_bf16"
TARGETS = (
    "rlboost_ragged_paged_attention",
    "rlboost_update_kv_pages",
    "rlboost_copy_kv_pages",
    "rlboost_linear_read",
    "rlboost_matmul",
)


def why_missing() -> str | None:
    """Say why the library cannot be used, with the command that helps; None if it can.

    Raises:
        ValueError: RLBOOST_KERNELS_CPU_ISA is no instruction set of ours or of this machine.
    """
    return _load()[1]


def isa() -> str:
    """Instruction set in use. The library must be there."""
    name, reason = _load()
    assert name is not None, reason
    return name


def multiplies_pairs() -> bool:
    """Whether products of bfloat16 take two entries at a time here; no without the library."""
    return _load()[0] == PAIRS_ISA


@lru_cache(maxsize=1)
def _load() -> tuple[str | None, str | None]:
    """Load the library and register its calls with XLA; the instruction set, or what is wrong."""
    path, reason = _newest_that_fits()
    if path is None:
        return None, reason
    if objection := replaceable(path):
        return None, f"its library could be anybody's: {objection}; run {BUILD_COMMAND}"
    try:
        library = ctypes.CDLL(str(path))
        library.rlboost_sources.restype = ctypes.c_char_p
        built_from = library.rlboost_sources().decode()
    except (OSError, AttributeError) as error:
        return None, f"its library cannot be loaded ({error}); run {BUILD_COMMAND}"
    if built_from != sources_digest():
        return None, f"its library was built from other sources; run {BUILD_COMMAND}"
    name = _use_isa(library)
    for target in TARGETS:
        call = jax.ffi.pycapsule(getattr(library, target))
        jax.ffi.register_ffi_target(target, call, platform="cpu")
    return name, None


def _newest_that_fits() -> tuple[Path | None, str | None]:
    """Find a library that fits this jaxlib, or say why there is none.

    It has to be known before a call is registered: JAX does that as its CPU backend starts, which
    then fails as a whole.
    """
    try:
        here = interface_version()
    except CannotBuild as error:
        return None, f"nothing tells which library this jaxlib takes: {error}"
    found = versions(FOLDER)
    fitting = [version for version in found if version[0] == here[0] and version <= here]
    if fitting:
        return found[max(fitting)], None
    if found:
        others = ", ".join(f"{major}.{minor}" for major, minor in sorted(found))
        return None, (
            f"its library was built for another jaxlib (version {others} of XLA's interface for "
            f"calls, here it is {here[0]}.{here[1]}); run {BUILD_COMMAND}"
        )
    return None, f"its library has not been built; with a C++ compiler, run {BUILD_COMMAND}"


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
