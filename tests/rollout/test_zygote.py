"""The process that forks servers, with a few lines in place of a rollout server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlboost_jax.platform.fork_server import ForkEnded
from tests.platform.test_fork_server import Forking

PROGRAM = """
import sys
from rlboost_jax.rollout import zygote
from tests.patience import PATIENCE_SECONDS

zygote.END_SECONDS = PATIENCE_SECONDS

def run(args):
    print(open("/proc/self/comm").read(), args, sys.stdin.read())
    if args[0] == "fail":
        raise ZeroDivisionError("in the server")
    if args[0] == "exit":
        sys.exit(7)
    return int(args[0])

zygote.fork_servers(run)
"""


@pytest.fixture
def zygote() -> Iterator[Forking]:
    forking = Forking(PROGRAM)
    yield forking
    forking.end()


@pytest.mark.parametrize(("argument", "code"), [("5", 5), ("exit", 7), ("fail", 1)])
def test_how_a_server_ends_is_its_exit_code(
    zygote: Forking, tmp_path: Path, argument: str, code: int
) -> None:
    """What it has printed is in its log, the exception too."""
    log = tmp_path / "a.log"
    zygote.started("a", argument, log=log)
    assert zygote.report() == ForkEnded(name="a", code=code)
    assert log.read_text().startswith(f"rlboost a\n ['{argument}'] \n")
    assert ("ZeroDivisionError: in the server" in log.read_text()) == (argument == "fail")


def test_what_it_imports_initialises_no_backend() -> None:
    program = (
        "import threading, flax.nnx, tensorstore; from rlboost_jax.rollout import server;"
        "from jax._src import xla_bridge as bridge;"
        "print(bridge.backends_are_initialized(), threading.active_count())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "1"], ran.stderr
