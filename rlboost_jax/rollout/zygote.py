"""A process that has imported everything a rollout server needs, and forks servers.

Imports take most of a server's start; a fork of this process is at work in about a second. Requests
come by the socket that is its standard input (`platform.fork_server`). Servers live on without it.
"""

import contextlib
import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlboost_jax.platform.fork_server import ForkRequest, ForkServer, ForkServerReady
from rlboost_jax.platform.frames import frame
from rlboost_jax.platform.garbage_collection import seldom_collected
from rlboost_jax.platform.output_relay import finish, speak_through_relay

END_SECONDS: Final = 1.0  # for what a server has printed to reach its log


def fork_servers(run: Callable[[list[str]], int]) -> None:
    """Fork processes that call `run` with their arguments, until the requests end."""
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    line.sendall(frame(ForkServerReady()))
    ForkServer(line, lambda request, _: _serve(request, run), together=False).serve()


def _serve(request: ForkRequest, run: Callable[[list[str]], int]) -> int:
    """Run a server in its process. Returns its exit code."""
    try:
        with contextlib.suppress(OSError):  # how `ps -e` and `top` call it, on Linux
            Path("/proc/self/comm").write_text(f"rlboost {request.name}")
        speak_through_relay(END_SECONDS)
        return run(list(request.args))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # the process owner's last word: it goes to the server's log
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        finish()


def main() -> int:
    with seldom_collected():  # what is there then is shared with all children
        import flax.nnx  # noqa: F401
        import tensorstore  # noqa: F401

        from rlboost_jax.rollout import server

        gc.collect()
    fork_servers(server.main)
    return 0


if __name__ == "__main__":
    sys.exit(main())
