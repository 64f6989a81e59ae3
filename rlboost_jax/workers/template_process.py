"""Process that renders untrusted chat templates within limits.

A template is a program. It gets processor time, memory and a length of its text for each
conversation, and no file, network or process to reach: `template_child.py`. The process starts
with the first template and stays; one that a template has broken is replaced by the next call.
"""

import atexit
import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from rlboost_jax.platform.frames import read_exactly, write_whole
from rlboost_jax.platform.mistakes import ConfigError, install
from rlboost_jax.workers import sandbox_child
from rlboost_jax.workers import template_child as child

CPU_SECONDS: Final = 10  # for one conversation; usual templates take less than a millisecond
WALL_SECONDS: Final = 120.0  # the same, on a host that is busy or was stopped
MEMORY_BYTES: Final = 2**30
CHARACTERS: Final = 2**24  # of a text, and of all that a template is given
MAY: Final = (
    f"a chat template may take {CPU_SECONDS} s and {MEMORY_BYTES // 2**20} MiB for a conversation, "
    f"and write {CHARACTERS:,} characters"
)
_START_SECONDS: Final = 120.0


class TemplateAnswer(NamedTuple):
    """Outcome of rendering a template.

    Attributes:
        kind: a letter of `template_child`; b"": it went beyond a limit.
        text: of the template, or why there is none.
        used_seconds: of processor time, by the process since it was started.
    """

    kind: bytes
    text: str
    used_seconds: int = 0


class TemplateProcess:
    """Renders one conversation at a time; callable in any thread."""

    def __init__(
        self, *, cpu_seconds: int = CPU_SECONDS, wall_seconds: float = WALL_SECONDS
    ) -> None:
        """Set up without a process, which starts with the first template."""
        self._cpu_seconds, self._wall_seconds = cpu_seconds, wall_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._used_seconds = 0
        self._one = threading.Lock()

    def render(self, template: str, values: str) -> TemplateAnswer:
        """Render a template with a JSON object of values.

        Raises:
            ConfigError: Jinja is not installed.
            OSError: no process can be started.
        """
        if len(template) + len(values) > CHARACTERS:
            return TemplateAnswer(b"", f"was given {len(template) + len(values):,} characters")
        texts = [text.encode(errors="surrogatepass") for text in (template, values)]
        request = child.REQUEST.pack(*map(len, texts)) + b"".join(texts)
        with self._one:
            for again in (True, False):
                answer = self._asked(request)
                # It also ends with the thread that started it.
                if answer is not None or not again:
                    break
        return answer or TemplateAnswer(b"", "ended its process")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()

    def forget(self) -> None:
        """Forget the process after a fork: it belongs to the parent."""
        self._process, self._one = None, threading.Lock()

    def _asked(self, request: bytes) -> TemplateAnswer | None:
        """Send a request; None if the process was ended from outside."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process, self._used_seconds = _started()
        process: subprocess.Popen[bytes] = self._process
        with contextlib.suppress(OSError):  # then the wall clock alone limits it
            limit = self._used_seconds + 1 + self._cpu_seconds
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        answer = _exchanged(process, request, time.monotonic() + self._wall_seconds)
        if answer is None:
            process.kill()
            code = process.wait()
            self.close()
            if code == -signal.SIGXCPU:
                return TemplateAnswer(
                    b"", f"took more than {self._cpu_seconds} s of processor time"
                )
            return None
        if answer.kind == child.MEMORY:
            self.close()
            return TemplateAnswer(b"", f"wanted more than {MEMORY_BYTES // 2**20} MiB of memory")
        if answer.kind == child.TOO_LONG:
            return TemplateAnswer(b"", f"wrote more than {CHARACTERS:,} characters")
        if not answer.kind:
            self.close()
        self._used_seconds = answer.used_seconds
        return answer


def _started() -> tuple["subprocess.Popen[bytes]", int]:
    if (found := importlib.util.find_spec("jinja2")) is None or not found.origin:
        raise ConfigError(f"chat templates need Jinja; {install('hf')}")
    numbers = map(str, (MEMORY_BYTES, CHARACTERS))
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-s", "-B", child.__file__, sandbox_child.__file__, *numbers),
            *(place for place in sys.path if place and Path(place, "jinja2").is_dir()),
            *(place for place in sys.path if place and Path(place, "markupsafe").is_dir()),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        cwd="/",
        bufsize=0,
    )
    ready = _exchanged(process, b"", time.monotonic() + _START_SECONDS)
    if ready is None or ready.kind != child.READY:
        process.kill()
        process.wait()
        raise OSError("the process that renders chat templates did not start")
    return process, ready.used_seconds


def _exchanged(
    process: "subprocess.Popen[bytes]", request: bytes, deadline: float
) -> TemplateAnswer | None:
    """Send a request and wait for the answer; None if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    receiving = process.stdout.fileno()
    try:
        write_whole(process.stdin.fileno(), request, deadline)
        header = read_exactly(receiving, child.ANSWER.size, deadline)
        if header is None:
            return None
        kind, used, length = child.ANSWER.unpack(header)
        if length > 4 * CHARACTERS:
            return TemplateAnswer(b"", f"wrote {length:,} bytes")
        text = read_exactly(receiving, length, deadline)
    except BrokenPipeError:
        return None
    except TimeoutError:
        return TemplateAnswer(b"", "did not end in time")
    if text is None:
        return None
    return TemplateAnswer(kind, text.decode(errors="surrogatepass"), used)


PROCESS: Final = TemplateProcess()
os.register_at_fork(after_in_child=PROCESS.forget)
atexit.register(PROCESS.close)
