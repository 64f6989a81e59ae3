"""A process that has imported everything a rollout server needs, and forks servers.

Imports take most of a server's start; a fork of this process is at work in about a second.
It must never initialise a JAX backend, because threads and devices do not survive a fork.

It reads JSON lines on standard input:

    {"start": name, "args": [...], "env": {...}, "log": path}    fork a server
    {"signal": name, "number": n}                                 signal one of them

and writes JSON lines on standard output: `{"ready": pid}` once the imports are done, then
`{"started": name, "pid": p}`, `{"failed": name, "reason": text}` and
`{"exited": name, "pid": p, "code": c}` (c < 0: killed by that signal). Each server started
is reported as exited exactly once. At the end of its input it leaves; the servers live on.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.garbage_collection import seldom_collected
from rlboost_jax.platform.output_relay import finish, speak_through_relay

END_SECONDS: Final = 1.0  # for what a server has printed to reach its log
READ_BYTES = 65536


class Zygote:
    """Forks `run(args)` on request.

    Args:
        run: a server's main function; returns its exit code.
        commands: file descriptor to read lines from.
        reports: file descriptor to write lines to.
        fork: the system's; raises OSError where there is no room for one process more.
    """

    def __init__(
        self,
        run: Callable[[list[str]], int],
        commands: int,
        reports: int,
        *,
        fork: Callable[[], int] = os.fork,
    ):
        self._run, self._commands, self._reports, self._fork = run, commands, reports, fork
        self._children: dict[int, str] = {}

    def serve(self) -> None:
        """Serve until the commands end."""
        # A signal's number arrives as a byte in this pipe: the loop below is the only code
        # that reaps, so that a child's death can never interrupt a fork or a report.
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._private = (wake, woken, self._commands, self._reports)
        selector = selectors.DefaultSelector()
        selector.register(self._commands, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        self._report({"ready": os.getpid()})
        unread = b""
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, READ_BYTES)
            self._reap()
            if self._commands in ready:
                data = os.read(self._commands, READ_BYTES)
                if not data:
                    return
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._obey(line)

    def _obey(self, line: bytes) -> None:
        try:
            command = foreign_json.decode(line, "a command", dict)
            if "signal" in command:
                self._signal(command["signal"], int(command["number"]))
            else:
                self._start(
                    command["start"], list(command["args"]), dict(command["env"]), command["log"]
                )
        except (ValueError, KeyError, TypeError) as error:
            self._report({"failed": "", "reason": f"unreadable command: {error!r}"})

    def _start(self, name: str, args: list[str], env: dict[str, str], log: str) -> None:
        try:
            with open(log, "ab", buffering=0) as output:
                pid = self._fork()
                if pid == 0:
                    self._become_server(name, args, env, output.fileno())
        except OSError as error:
            self._report({"failed": name, "reason": f"{error}"})
            return
        self._children[pid] = name
        self._report({"started": name, "pid": pid})

    def _become_server(
        self, name: str, args: list[str], env: dict[str, str], output: int
    ) -> NoReturn:
        """Run the server in the child process, never returning into the parent's loop."""
        code = 1
        try:
            os.setsid()
            with contextlib.suppress(OSError):  # how `ps -e` and `top` call it, on Linux
                Path("/proc/self/comm").write_text(f"rlboost {name}")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            for descriptor in {*self._private, output, nothing} - {0, 1, 2}:
                os.close(descriptor)
            os.environ.update(env)
            speak_through_relay(END_SECONDS)
            code = self._run(args)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:  # the process owner's last word: it goes to the server's log
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            finish()
            os._exit(code)

    def _signal(self, name: str, number: int) -> None:
        # Only children not yet reaped are listed, so a pid here cannot have been reused.
        for pid, child in self._children.items():
            if child == name:
                os.kill(pid, number)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._children.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                self._report({"exited": name, "pid": pid, "code": code})

    def _report(self, report: dict[str, Any]) -> None:
        # Where nobody reads any more the end of the commands is near and ends the loop.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._reports, json.dumps(report).encode() + b"\n")


def main() -> int:
    # Whatever a library prints must not mix with the reports.
    commands, reports = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with seldom_collected():  # what is there then is shared with all children
        import flax.nnx  # noqa: F401
        import tensorstore  # noqa: F401

        from rlboost_jax.rollout import server

        gc.collect()
    Zygote(server.main, commands, reports).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
