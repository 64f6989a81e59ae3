"""Where compiled programs are kept, so that a server that joins does not compile."""

import contextlib
import hashlib
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax._src import compilation_cache  # what it compresses with has no public name

from rlboost_jax.host.exhaustion import exhausted
from rlboost_jax.host.private_paths import code_folder
from rlboost_jax.jax_switches import check_switches, devices_found
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.readable import check_text

DEFAULT_FOLDER = "~/.cache/rlboost_jax"


def enable(folder: str = "") -> Path:
    """Keep every program JAX compiles from now on, however small; returns the place.

    A program for a CPU holds machine code for that processor's features, so hosts that are
    not alike and share `folder` get places of their own in it.

    Args:
        folder: "" takes the place that JAX's own variable names, as it is, or `DEFAULT_FOLDER`.

    Raises:
        NotOurs: another user could put programs there, which would be run.
        ConfigError: it cannot be made; or a switch of JAX makes other programs (`check_switches`).
    """
    check_switches()
    given = "" if folder else os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    place = Path(given or Path(folder or DEFAULT_FOLDER).expanduser() / fingerprint())
    setting = "JAX_COMPILATION_CACHE_DIR" if given else "compile_cache_dir"
    check_text(place, setting)
    try:
        code_folder(place, setting)
    except OSError as error:
        if exhausted(error):
            raise
        shown = place if given else place.parent
        raise ConfigError(
            f"{shown} cannot be made: {error.strerror}; set {setting} to a folder for compiled "
            "programs that can be written"
        ) from error
    with_checksums()
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # The folder of the cache that XLA itself would keep for GPUs becomes a part of each program's
    # name, and hosts whose folders differ would never find each other's.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    return place


def with_checksums() -> None:
    """Have programs compressed by zlib, whose checksum is compared on reading: a damaged one is
    compiled again. JAX prefers zstd where that is installed, without a checksum, and would run
    whatever a flipped bit has made of a program."""
    for name in ("zstd", "zstandard"):
        if getattr(compilation_cache, name, None) is not None:
            setattr(compilation_cache, name, None)


def place() -> Path | None:
    """Where programs are kept now; None: nowhere."""
    found: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return Path(found) if found else None


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """Names of files of programs that this thread reads or makes meanwhile, below the place."""
    _record_all()
    names: list[str] = []
    before = getattr(_recording, "names", None)
    _recording.names = names
    try:
        yield names
    finally:
        _recording.names = before


_recording = threading.local()
_SUFFIX = "-cache"  # that JAX puts behind a key


def _record_all() -> None:
    """Have JAX's own reads and writes of programs noted, once in a process."""
    if getattr(compilation_cache, "rlboost_recorded", False):
        return
    for verb in ("get_executable_and_time", "put_executable_and_time"):
        setattr(compilation_cache, verb, _noting(getattr(compilation_cache, verb)))
    compilation_cache.rlboost_recorded = True  # type: ignore[attr-defined]


def _noting(call: Any) -> Any:
    def noted(cache_key: str, *args: Any, **options: Any) -> Any:
        if (names := getattr(_recording, "names", None)) is not None:
            names.append(f"{cache_key}{_SUFFIX}")
        return call(cache_key, *args, **options)

    return noted


def kind() -> str:
    """What hosts have in common that can use each other's programs. Touches devices.

    For CPUs it is the processor, for other devices their kind; XLA's flags and all else are part of
    the name of each program.
    """
    device = devices_found()[0]
    if device.platform == "cpu":
        return fingerprint()
    name = device.device_kind.replace(" ", "_")
    return f"jax{jax.__version__}-jaxlib{jaxlib.__version__}-{device.platform}-{name}"


def fingerprint() -> str:
    """What programs of one cache have in common: JAX's version and the processor."""
    processor = hashlib.sha256(_processor().encode()).hexdigest()[:12]
    return f"jax{jax.__version__}-jaxlib{jaxlib.__version__}-{platform.machine()}-{processor}"


def _processor() -> str:
    """Model and instruction sets of the first core."""
    try:
        cores = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")
    except OSError:  # not Linux
        return platform.processor()
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(line for line in cores[0].splitlines() if line.startswith(kept))
