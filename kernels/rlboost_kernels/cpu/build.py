"""Compile the library of the `cpu` implementation

Needs a C++17 compiler (the environment variable CXX, or g++, clang++ or c++) and the headers that
come with jaxlib. The code of each instruction set is compiled for that set and nothing else is,
so one library runs on every machine of an architecture, with every jaxlib whose version of XLA's
interface for foreign calls is not older than the one compiled for. That version is in the library's
name, so that environments with other jaxlibs can share a source folder. `setup.py` builds with the
same function, loading this file by its path: it imports the standard library alone.
"""

import hashlib
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
FOLDER = Path(__file__).parent  # of libraries
_NAME = "librlboost_kernels_ffi{}_{}.so"  # of any Python, so without its tag

# No contraction: where a product is rounded is part of what is promised about bits.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *_AVX2),
    "-Wno-maybe-uninitialized",  # which GCC 12 says of its own header
)
_X86_64 = {
    "attention_avx2.cpp": _AVX2,
    "attention_avx512.cpp": _AVX512,
    "matmul_avx512_bf16.cpp": _AVX512,
}
_X86_64_IF_KNOWN = {"matmul_avx512_bf16.cpp": ("-mavx512bf16",)}  # since GCC 10 and Clang 9


class CannotBuild(Exception):
    """A compiler or a header is missing, or the compiler failed."""


def library_of(version: tuple[int, int]) -> str:
    """Name of the library compiled for a version of the interface."""
    return _NAME.format(*version)


def versions(folder: Path) -> dict[tuple[int, int], Path]:
    """Libraries in a folder, by their version."""
    pattern = re.compile(re.escape(_NAME).replace(r"\{\}", r"(\d+)"))
    found = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return {(int(match[1]), int(match[2])): path for match, path in found if match}


def replaceable(library: Path) -> str:
    """Say why a user who may not change the sources could replace the library.

    What is loaded is run. So a library belongs to this user, to root or to whoever owns this file,
    and only those may write it who may write this file; "" where that is so.
    """
    found, source = library.lstat(), Path(__file__).stat()
    mode = f"mode {stat.S_IMODE(found.st_mode):o}"
    if found.st_uid not in (os.geteuid(), 0, source.st_uid):
        return f"{library} belongs to user {found.st_uid} ({mode})"
    if found.st_mode & ~source.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return f"{library} ({mode}) can be written by others"
    return ""


def interface_version() -> tuple[int, int]:
    """Read the version of XLA's interface for calls (`XLA_FFI_API_*`) from jaxlib's headers.

    Raises:
        CannotBuild: there are none.
    """
    text = (_headers() / "xla" / "ffi" / "api" / "c_api.h").read_text(encoding="utf-8")
    numbers = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if not all(numbers):
        raise CannotBuild("xla/ffi/api/c_api.h names no XLA_FFI_API_MAJOR or _MINOR")
    major, minor = (int(number[1]) for number in numbers if number)
    return major, minor


def build(libraries: Path = FOLDER, report: Callable[[str], None] = lambda line: None) -> Path:
    """Compile and link the library for this jaxlib; an older one stays until it is complete.

    Args:
        report: called with a line for each file that is compiled.

    Raises:
        CannotBuild: with what is missing, or what the compiler said.
    """
    compiler, include = _compiler(), _headers()
    library = libraries / library_of(interface_version())
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlboost-kernels-") as folder:
        sources = sorted(SOURCES.glob("*.cpp"))
        done = itertools.count(1)

        def compile_one(source: Path) -> str:
            target = Path(folder) / (source.stem + ".o")
            define = f'-DRLBOOST_SOURCES="{sources_digest()}"'
            flags = (*_FLAGS, *_machine_flags(compiler, source), define, "-isystem", str(include))
            _run([*compiler, *flags, "-c", str(source), "-o", str(target)])
            report(f"compiled {source.name} ({next(done)} of {len(sources)})")
            return str(target)

        report(
            f"compiling {len(sources)} files with {compiler[0]}; it takes minutes on a slow host"
        )
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources))
        linked = Path(folder) / library.name
        _run([*compiler, "-shared", "-pthread", *objects, "-o", str(linked)])
        # Beside the old one first: a running process keeps the file it has mapped.
        beside = library.with_name(f".{library.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        with open(linked, "rb") as made, open(beside, "xb") as file:
            shutil.copyfileobj(made, file)
            os.fchmod(file.fileno(), 0o644)  # whatever the umask: it is run
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty library
        os.replace(beside, library)
    return library


def sources_digest() -> str:
    """Digest of all the files a library is compiled from."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compiler() -> list[str]:
    if named := os.environ.get("CXX"):
        command = shlex.split(named)
        if not shutil.which(command[0]):
            raise CannotBuild(f"CXX names {command[0]}, which is not there")
        return command
    for name in ("g++", "clang++", "c++"):
        if found := shutil.which(name):
            return [found]
    raise CannotBuild("there is no C++ compiler: neither g++, clang++ nor c++, and CXX is not set")


def _headers() -> Path:
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuild("jaxlib, which has the headers, is not installed")
    include = Path(spec.submodule_search_locations[0]) / "include"
    if not (include / "xla" / "ffi" / "api" / "ffi.h").exists():
        raise CannotBuild(f"{include} lacks xla/ffi/api/ffi.h")
    return include


def _machine_flags(compiler: list[str], source: Path) -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    further = _X86_64_IF_KNOWN.get(source.name, ())
    known = further if _takes(compiler, further) else ()
    return (*_X86_64.get(source.name, ()), *known)


def _takes(compiler: list[str], flags: tuple[str, ...]) -> bool:
    command = [*compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)
