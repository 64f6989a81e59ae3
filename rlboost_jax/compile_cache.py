"""Where compiled programs are kept, so that a server that joins does not compile."""

import hashlib
import os
import platform
from pathlib import Path

import jax
import jaxlib
from jax._src import compilation_cache  # what it compresses with has no public name

from rlboost_jax.own_places import own_folder

DEFAULT_FOLDER = "~/.cache/rlboost_jax"


def enable(folder: str = "") -> Path:
    """Keep every program JAX compiles from now on, however small; returns the place.

    A program for a CPU holds machine code for that processor's features, so hosts that are
    not alike and share `folder` get places of their own in it.

    Args:
        folder: "" takes the place that JAX's own variable names, as it is, or `DEFAULT_FOLDER`.

    Raises:
        NotOurs: the place is another user's, whose programs would be run.
    """
    given = "" if folder else os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    place = Path(given or Path(folder or DEFAULT_FOLDER).expanduser() / fingerprint())
    if not given:
        own_folder(place.parent, "compile_cache_dir")
    own_folder(place, "JAX_COMPILATION_CACHE_DIR" if given else "compile_cache_dir")
    with_checksums()
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place


def with_checksums() -> None:
    """Have programs compressed by zlib, whose checksum is compared on reading: a damaged one is
    compiled again. JAX prefers zstd where that is installed, without a checksum, and would run
    whatever a flipped bit has made of a program."""
    for name in ("zstd", "zstandard"):
        if getattr(compilation_cache, name, None) is not None:
            setattr(compilation_cache, name, None)


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
