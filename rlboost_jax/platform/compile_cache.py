"""Where compiled programs are kept, so that a server that joins does not compile.

Processes of a host that share the place compile each program once: the first to miss it takes its
turn, the others wait and read what it has kept. A turn is a lock of the kernel's, so that it ends
with its process, however that ends, and another process goes on in its place.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jax
import jaxlib
from jax._src import compilation_cache, compiler  # neither names nor turns are public

from rlboost_jax.platform.exhaustion import exhausted
from rlboost_jax.platform.jax_switches import check_switches, devices_found
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.private_paths import code_folder
from rlboost_jax.platform.readable import check_text

DEFAULT_FOLDER = "~/.cache/rlboost_jax"
TURN_SECONDS: Final = 600.0  # to wait for another process that compiles the same program
_LOOK_SECONDS: Final = 0.05  # between two attempts to take a lock
_LOCKS: Final = ".turns"  # a file in the place; each name has a byte of its own to lock


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
    _take_over()
    return place


def with_checksums() -> None:
    """Have programs compressed by zlib, whose checksum is compared on reading.

    A damaged program is compiled again. JAX prefers zstd where that is installed, without a
    checksum, and would run whatever a flipped bit has made of a program.
    """
    for name in ("zstd", "zstandard"):
        if getattr(compilation_cache, name, None) is not None:
            setattr(compilation_cache, name, None)


def place() -> Path | None:
    """Folder in which programs are kept now; None: nowhere."""
    found: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return Path(found) if found else None


@contextlib.contextmanager
def recorded(say: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Collect the file names of programs that this thread reads or makes within.

    Args:
        say: takes a line for each program that this thread compiles, or waits for while another
            process compiles it.
    """
    _take_over()
    names: list[str] = []
    before = getattr(_thread, "names", None), getattr(_thread, "say", None)
    _thread.names, _thread.say = names, say
    try:
        yield names
    finally:
        _thread.names, _thread.say = before
        if _thread.names is not None:
            _thread.names += names


@contextlib.contextmanager
def turn(
    name: str, waiting: Callable[[], None] = lambda: None, *, seconds: float = TURN_SECONDS
) -> Iterator[None]:
    """Hold a name alone among the processes that share the folder of programs.

    Without a place, on a file system without locks, or after a wait of `seconds`, the block runs
    all the same: at worst work is done twice. Once a process has waited so long in vain it waits
    for no name of that place any more, since its holder may be stopped for good.

    Args:
        waiting: called once, where another process holds the name and is waited for.
    """
    lock = _lock_of(name, waiting, seconds)
    try:
        yield
    finally:
        _release(lock)


_Lock = tuple[int, int]  # descriptor and byte
_thread = threading.local()  # names, say: of `recorded`; locks: of the program that is compiled
_SUFFIX = "-cache"  # that JAX puts behind a key
_descriptors: dict[Path, int] = {}  # of files with locks; a closed one would release them all
_in_vain: set[Path] = set()  # places where this process has waited for its whole time


def _lock_of(name: str, waiting: Callable[[], None], seconds: float) -> _Lock | None:
    """Lock a name; None where that is impossible."""
    folder = place()
    if folder is None or jax.distributed.is_initialized():  # processes that compile together
        return None
    byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
    end, waits = time.monotonic() + seconds, False
    try:
        if folder not in _descriptors:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            _descriptors[folder] = os.open(folder / _LOCKS, flags, 0o600)
        lock = _descriptors[folder], byte
        while not _locked(lock):
            if folder in _in_vain:
                return None
            if not waits:
                waits = True
                waiting()
            if time.monotonic() >= end:
                _in_vain.add(folder)
                return None
            time.sleep(_LOOK_SECONDS)
    except OSError:  # a folder that is gone, or without locks
        return None
    return lock


def _locked(lock: _Lock) -> bool:
    """Whether this process holds it now."""
    descriptor, byte = lock
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # which of the two is the system's choice
        return False
    return True


def _release(lock: _Lock | None) -> None:
    if lock is not None:
        descriptor, byte = lock
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def _take_over() -> None:
    """Have JAX's reads and writes of programs recorded and take turns, once per process."""
    if getattr(compilation_cache, "rlboost_recorded", False):
        return
    read, write = (
        compilation_cache.get_executable_and_time,
        compilation_cache.put_executable_and_time,
    )
    compilation_cache.get_executable_and_time = _noting(_in_turn(read))
    compilation_cache.put_executable_and_time = _noting(write)
    compiler.compile_or_get_cached = _ending_turn(compiler.compile_or_get_cached)
    compilation_cache.rlboost_recorded = True  # type: ignore[attr-defined]


def _noting(call: Any) -> Any:
    def noted(cache_key: str, *args: Any, **options: Any) -> Any:
        if (names := getattr(_thread, "names", None)) is not None:
            names.append(f"{cache_key}{_SUFFIX}")
        return call(cache_key, *args, **options)

    return noted


def _in_turn(read: Any) -> Any:
    """Make reads return nothing only to the process whose turn it is to compile."""

    def read_in_turn(cache_key: str, *args: Any, **options: Any) -> Any:
        with contextlib.suppress(Exception):  # a damaged one: looked at below
            if (found := read(cache_key, *args, **options))[0] is not None:
                return found
        say = getattr(_thread, "say", None) or (lambda _: None)
        program = cache_key.rpartition("-")[0].removeprefix("jit_").strip("_")
        line = f"waiting for another process on this host, which compiles {program}"
        lock = _lock_of(cache_key, lambda: say(line), TURN_SECONDS)
        _thread.locks = [*getattr(_thread, "locks", ()), lock]
        try:
            if (found := read(cache_key, *args, **options))[0] is None:
                say(f"compiling {program}, which the cache does not have yet")
            return found
        except Exception:  # whatever a damaged program leads to; JAX warns and compiles it anew
            say(f"compiling {program}, which is damaged in the cache")
            if lock is not None and (folder := place()) is not None:
                # JAX keeps nothing where there is a file already, such as a half-written one.
                (folder / f"{cache_key}{_SUFFIX}").unlink(missing_ok=True)
            raise

    return read_in_turn


def _ending_turn(compile_or_get: Any) -> Any:
    def compile_in_turn(*args: Any, **options: Any) -> Any:
        before = getattr(_thread, "locks", [])
        _thread.locks = []
        try:
            return compile_or_get(*args, **options)
        finally:
            for lock in _thread.locks:
                _release(lock)
            _thread.locks = before

    return compile_in_turn


def kind() -> str:
    """Name shared by hosts that can use each other's programs. Touches devices.

    For CPUs it is the processor, for other devices their kind; XLA's flags and all else are part of
    the name of each program.
    """
    device = devices_found()[0]
    if device.platform == "cpu":
        return fingerprint()
    name = device.device_kind.replace(" ", "_")
    return f"jax{jax.__version__}-jaxlib{jaxlib.__version__}-{device.platform}-{name}"


def fingerprint() -> str:
    """Name of what programs of one cache share: JAX's version and the processor."""
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
