"""External program that drives an episode: one process, and everything it starts.

It knows an address and a token. It gets no more of our environment than any program needs, and
ends with its episode: its process group is killed.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.environments.results import json_form
from rlboost_jax.platform.process_liveness import end_with_parent
from rlboost_jax.platform.program_start import start_program

KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH")
_SHOWN: Final = 2000  # last characters of what it wrote to stderr
_PART: Final = 2**16
_MOST_VARIABLE: Final = 100_000  # characters; Linux takes 128 KiB


class Harness:
    """A running harness. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str, errors: int) -> None:
        self._process, self._folder = process, folder
        self._errors = ""
        # A pipe of our own: another holder of it does not keep the process from ending for us.
        self._pipe = errors
        asyncio.get_running_loop().add_reader(errors, self._read)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        base_url: str,
        token: str,
        session_url: str,
        model: str,
        example: Mapping[str, Any],
        seed: int,
        variables: Mapping[str, str],
        inside: bool,
    ) -> "Harness":
        """Start the program.

        Args:
            inside: it runs in the folder that is made for it, else where this process does.

        Raises:
            OSError: there is no such program.
        """
        folder = tempfile.mkdtemp(prefix="rlboost-harness-")
        # Tables have dates and the like.
        text = json.dumps(msgspec.to_builtins(example, enc_hook=json_form, str_keys=True))
        path = Path(folder) / "example.json"
        path.write_text(text, encoding="utf-8")
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": token,
            "OPENAI_MODEL": model,
            "RLBOOST_SESSION_URL": session_url,
            "RLBOOST_FOLDER": folder,
            "RLBOOST_EXAMPLE_FILE": str(path),
            "RLBOOST_SEED": str(seed),
            **variables,
        }
        if len(text) < _MOST_VARIABLE:
            environment["RLBOOST_EXAMPLE"] = text
        inlet, outlet = os.pipe()
        os.set_blocking(inlet, False)
        try:
            process = await start_program(
                *command,
                env=environment,
                cwd=folder if inside else None,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=outlet,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        except BaseException:
            os.close(inlet)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(outlet)
        return cls(process, folder, inlet)

    async def ended(self) -> int:
        """Wait for the program's end; returns its exit code."""
        code = await self._process.wait()
        self._read()
        return code

    @property
    def said(self) -> str:
        """The end of the program's standard error."""
        return self._errors.strip()

    async def close(self) -> None:
        """End the program and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._pipe >= 0:
            self._close_pipe()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        """Read the standard error written so far."""
        try:
            while self._pipe >= 0:
                part = os.read(self._pipe, _PART)
                if not part:
                    self._close_pipe()
                self._errors = (self._errors + part.decode(errors="replace"))[-_SHOWN:]
        except BlockingIOError:
            pass

    def _close_pipe(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
