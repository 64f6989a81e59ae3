"""How tests run: shapes are checked, implicit rank promotion is an error, programs compile once."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

# Before the first import of torch or NumPy: as oracles they work on arrays so small that threads
# wait for each other 30 times longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A caller in the background has SIGINT ignored, which all that tests start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest
from jaxtyping import install_import_hook

from tests import checks

# While tests run, shape annotations of array code are checked on every call. The hook must be
# in place before the first import of these packages. Only code that runs eagerly or traces
# is in it: the service packages hold no arrays, and checks would slow their hot paths.
CHECKED = ("algorithms", "engine", "learner", "models")

checks.save()
install_import_hook([f"rlboost_jax.{name}" for name in CHECKED], "beartype.beartype")

import jax  # noqa: E402  (after the hook)

from tests import thrift, unoptimized  # noqa: E402
from tests.patience import PATIENCE_SECONDS  # noqa: E402
from tests.planted import Plant, planted  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

# Fixed examples in CI, so that a red build is red again when it is run again. Tests whose examples
# compile a program each take a share of `max_examples`.
UNTIMED = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],  # of the machine, that is
}
hypothesis.settings.register_profile("default", **UNTIMED)
hypothesis.settings.register_profile("ci", **UNTIMED, derandomize=True)
hypothesis.settings.register_profile("soak", **UNTIMED, max_examples=1000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

jax.config.update("jax_numpy_rank_promotion", "raise")

# What these compare to a tolerance runs for a moment and is compiled in a quarter of the time
# without most optimizations. All other folders get what a run gets, and so do tests whose
# subject is bits, which say so: `@pytest.mark.optimized`. `optimized(False)` is for single tests
# elsewhere: of a tolerance, of counts, or of memory, which is laid out before LLVM optimizes.
UNOPTIMIZED = {"algorithms", "learner", "models", "qualification"}
unoptimized.add_options()
thrift.save()


def pytest_collection_finish() -> None:
    """Collections took a tenth of what traces programs: they pass over modules and tests, which
    stay to the end, and look for cycles less often than after every 700 objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("optimized")
    room = item.path.relative_to(ROOT).parts[1]
    optimized = mark.args != (False,) if mark else room not in UNOPTIMIZED
    jax.config.update("jax_disable_most_optimizations", not optimized)
    try:
        return (yield)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session", autouse=True)
def compile_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled programs, shared by all workers, the processes that they start, and
    later sessions. `pytest --cache-clear` empties it; without pytest's cache it is this session's.
    """
    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("compiled") if cache else tmp_path_factory.mktemp("compiled")
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    os.environ.update(settings)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Puts a mistake into the product until the end of the test (tests/planted.py)."""
    with ExitStack() as stack:

        def put(owner: object, name: str, defect: object) -> None:
            stack.enter_context(planted(owner, name, defect))

        yield put


@pytest.fixture(scope="session")
def run_with_devices() -> Callable[..., str]:
    """Runs Python source in a process of its own with so many simulated CPU devices.

    Returns what it printed; fails the test with its error output if it ended badly. The
    number of devices is fixed once a backend exists, which is why this process cannot do it.
    """

    def run(source: str, num_devices: int, *, optimized: bool = False) -> str:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count="
        flags += str(num_devices)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            **({"XLA_FLAGS": flags} if optimized else unoptimized.environment(flags)),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
        }
        done = subprocess.run(
            [sys.executable, "-c", f"from tests import thrift\nthrift.save()\n{source}"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
