"""C libraries that tests preload under a process of a run."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path


def built(source: Path, folder: Path) -> Path:
    """The library of a C file, built in `folder` with the compiler that CPU kernels are built
    with."""
    library = folder / source.with_suffix(".so").name
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library
