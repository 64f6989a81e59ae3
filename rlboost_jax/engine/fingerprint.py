"""What equal bits depend on, as a short string that two engines can compare.

Engines with equal fingerprints give equal tokens and log-probabilities for equal requests and
weights. Different ones may differ in the last bits, and now and then in a token.
"""

import contextlib
import dataclasses
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import jax
import jaxlib
from rlboost_kernels import active

from rlboost_jax.platform.installed_versions import versions_of
from rlboost_jax.platform.jax_switches import switches_of_bits
from rlboost_jax.settings import fingerprints

# XLA flags that change how a program is made or watched, and not what it computes.
_HARMLESS_FLAGS = (
    "--xla_force_host_platform_device_count",
    "--xla_dump",
)
# What makes GPU programs or computes in them.
_LIBRARIES = (
    *("jax-cuda", "nvidia-cublas", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-cudnn"),
    *("nvidia-cufft", "nvidia-cusolver", "nvidia-cusparse", "nvidia-nccl", "nvidia-nvjitlink"),
)
# Variables by which NVIDIA's libraries compute otherwise.
_OF_LIBRARIES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
_OF_TPU = "LIBTPU_INIT_ARGS"  # XLA's flags of a TPU


def fingerprint(
    device: jax.Device,
    *,
    kernels: Mapping[str, str] | None = None,
    libraries: Mapping[str, str] | None = None,
    **settings: object,
) -> str:
    """A readable part (jax version, kind of device) and a digest over that and the rest.

    Args:
        kernels: implementation of each operation; None: those that are active.
        libraries: versions of those of a GPU, and variables that they read; None: those here.
        settings: of the programs: records, numbers and names with a stable `repr`.
    """
    facts = {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "device": device.device_kind,
        "kernels": repr(sorted((active() if kernels is None else kernels).items())),
        "cpu": _cpu() if device.platform == "cpu" else "",
        **({} if device.platform == "cpu" else _libraries() if libraries is None else libraries),
        "xla_flags": _xla_flags(),
        "matmul_precision": str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
        **({"jax_switches": switches} if (switches := switches_of_bits()) else {}),
        **{name: _plain(value) for name, value in settings.items()},
    }
    text = "\n".join(f"{name}={facts[name]}" for name in sorted(facts))
    return fingerprints.composed(
        jax.__version__,
        device.device_kind,
        # On CPU it is no choice: it follows from the library, which `active` tells.
        attention="" if device.platform == "cpu" else str(settings.get("attention", "")),
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
    )


def _plain(value: object) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return str(sorted(dataclasses.asdict(value).items()))
    return repr(value)


def _libraries() -> dict[str, str]:
    """Versions of the GPU libraries: jax accepts a range, so its own does not imply them."""
    found = {name: os.environ.get(name, "") for name in _OF_LIBRARIES}
    if given := os.environ.get(_OF_TPU):
        found[_OF_TPU] = given
    return {**versions_of(*_LIBRARIES), **found}


def _xla_flags() -> str:
    """The effective XLA flags: the last of each name, from a file where XLA_FLAGS names one."""
    given = os.environ.get("XLA_FLAGS", "").strip()
    if given and not given.startswith("-"):
        with contextlib.suppress(OSError):  # XLA passes over a file that it cannot read
            given = Path(given).read_text(errors="replace")
    flags = {flag.partition("=")[0]: flag for flag in given.split()}
    return " ".join(sorted(flag for flag in flags.values() if not flag.startswith(_HARMLESS_FLAGS)))


def _cpu() -> str:
    """CPU model and instruction sets, by which libraries choose their code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    keys = ("vendor_id", "cpu family", "model", "model name", "flags", "Features")
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in keys:
            facts.setdefault(key.strip(), " ".join(sorted(value.split())))
    return f"{platform.machine()} {sorted(facts.items())}"
