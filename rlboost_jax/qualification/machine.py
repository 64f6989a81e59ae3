"""What a verdict depends on besides the problem, found without touching a device.

A process that asks JAX for its devices takes most of their memory, and where only one process may
use a device it keeps children from it.
"""

import hashlib
import importlib.util
import os
import pkgutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import jax
import rlboost_kernels

from rlboost_jax import models
from rlboost_jax.platform.installed_versions import versions_of
from rlboost_jax.settings import memory_estimates

_NODES: Final = ("nvidia[0-9]*", "nvidiactl", "dxg")  # in /dev, where there is an NVIDIA GPU
_PLUGIN: Final = "xla_cuda"  # how JAX's plugins for it are called
_DRIVER: Final = Path("/proc/driver/nvidia")
_ASK_SECONDS: Final = 30.0
# Variables that change what a program computes, or on which device.
_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "NVIDIA_TF32_OVERRIDE",
    "XLA_FLAGS",
)
_DISTRIBUTIONS: Final = ("jax", "nvidia-")  # how names begin of what compiles or is linked


def gpu_expected(dev: Path = Path("/dev"), plugins: Iterable[str] | None = None) -> bool:
    """Whether JAX would look for a GPU, and could find one. Only a child process knows for sure.

    Args:
        dev: the folder of device nodes.
        plugins: folders of JAX's plugins; None: where this process has them.
    """
    asked = (jax.config.jax_platforms or "").split(",")  # type: ignore[attr-defined]
    if asked != [""] and not {"cuda", "gpu"} & set(asked):
        return False
    return _has_plugin(plugins) and any(any(dev.glob(name)) for name in _NODES)


def facts(
    driver: Path = _DRIVER, *, sources: Mapping[str, Path] | None = None
) -> Mapping[str, str] | None:
    """Device, driver and versions; None where the device is not known and nothing can be kept.

    Args:
        driver: the folder in which the driver speaks of itself.
        sources: that say what is tried; None: those of the candidates.
    """
    device = _device(driver)
    if not device:
        return None
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    versions = versions_of(*_DISTRIBUTIONS)
    return {
        "device": device,
        "kernels": _digest_of(sources_of_candidates() if sources is None else sources),
        **versions,
        **variables,
    }


def _has_plugin(folders: Iterable[str] | None) -> bool:
    if folders is None:
        spec = importlib.util.find_spec("jax_plugins")
        folders = (spec.submodule_search_locations if spec else None) or ()
    return any(module.name.startswith(_PLUGIN) for module in pkgutil.iter_modules(folders))


def _device(folder: Path) -> str:
    """Name all GPUs and the driver's version, as the driver says; "" without a driver."""
    try:
        driver = (folder / "version").read_text().splitlines()[0].strip()
        models = [
            line.partition(":")[2].strip()
            for path in sorted(folder.glob("gpus/*/information"))
            for line in path.read_text().splitlines()
            if line.startswith("Model:")
        ]
    except (OSError, IndexError):
        driver, models = "", []
    return f"{', '.join(models)}; {driver}" if models else _reported_by_tool()


def _reported_by_tool() -> str:
    """Name them by the vendor's tool where the driver's files are hidden, as in containers."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(shown.stdout.split("\n")).strip("; ") if shown.returncode == 0 else ""


def sources_of_candidates() -> Mapping[str, Path]:
    """Sources of all kernels, of what calls them, of their sizes, and of what tries them."""
    found = {"settings/memory_estimates.py": Path(str(memory_estimates.__file__))}
    for module in (rlboost_kernels.__file__, models.__file__, __file__):
        folder = Path(str(module)).parent
        found |= {path.relative_to(folder.parent).as_posix(): path for path in folder.rglob("*.py")}
    return found


def _digest_of(sources: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
