"""The manager process of a work directory: find or start it, and end it with the run.

The manager outlives its trainer: it is started in a session of its own and found again
through `<workdir>/manager.json`, so that a trainer killed in mid-step comes back to the
tokens its fleet went on producing. Only the manager's own lock says who manages: one that
was started beside another leaves by itself.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.platform import exits
from rlboost_jax.platform.busy import waited_seconds
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.proxies import opened
from rlboost_jax.platform.restarts import RESTARTS, Again, Cause, End, Restarts, Stop, after_end
from rlboost_jax.trust.credentials import (
    RECOVERS,
    CredentialsUnusable,
    Endpoint,
    explain,
    read_credentials,
)
from rlboost_jax.trust.run_files import ALREADY_MANAGED, ManagerRecord, read_record, trainer_folder
from rlboost_jax.trust.seal import SEAL_KEY, read_seal_key

ANSWER_SECONDS = 30.0  # for a manager to answer, one that starts or stands still included
ASK_SECONDS = 2.0  # for one answer
LEAVE_SECONDS = 10.0
POLL_SECONDS = 0.02
MOST_FAREWELLS = 5  # of managers that are killed as they leave
PROGRESS_BYTES = 200  # of what a manager says of its start


class ManagerNotStarted(RuntimeError):
    """The manager process ended too often in a row, or did not answer in time."""


class ManagerMisconfigured(Mistake, ManagerNotStarted):
    """The manager would fail the same way again: the settings or the installation must change."""


class ManagerProcess:
    """The manager of one run, started here or by another trainer."""

    def __init__(
        self,
        workdir: Path,
        run_id: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        ask_seconds: float = ASK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[int], float] = waited_seconds,
        restarts: Restarts = RESTARTS,
    ):
        """Set up without starting a manager, which `locate` does.

        Args:
            answer_seconds: for a manager to answer, one that starts or stands still included.
            ask_seconds: for one answer.
            clock: seconds.
            waited: seconds that a process would have run and had no processor.
            restarts: how often it is started, and after which pauses.
        """
        self._clock, self._waited = clock, waited
        self._answer_seconds, self._ask_seconds = answer_seconds, ask_seconds
        self._workdir, self._run_id = workdir, run_id
        self._log = workdir / "logs" / "manager.log"
        self._restarts = restarts
        self._child: subprocess.Popen[bytes] | None = None  # the last that was started here
        self._failed = 0  # starts in a row that came to nothing
        self._ready_at: float | None = None  # when that one was first found to answer
        self._locating = threading.Lock()
        self._located = False
        self._trouble = ""  # why it was not reached
        self._progress = ""  # of a manager that still reads its journal, in its own words

    def locate(self) -> Endpoint:
        """Address of the manager, with the trainer's credentials; starts one if none lives.

        One that lives is waited for, however slowly it answers. One that was ended from outside is
        started again, in its first seconds as later. May be called from several threads at once.

        Raises:
            ManagerNotStarted: with the end of its log; ManagerMisconfigured where that is a
                mistake in the settings or the installation.
        """
        with self._locating:
            start_at = began = self._clock()
            self._progress = progress = ""
            while (found := self._answering()) is None:
                now = self._clock()
                if self._progress != progress:  # it reads its journal, however long that takes
                    progress, began = self._progress, now
                code, excused = None, 0.0
                if self._child is not None:  # on a busy host it may hardly have begun
                    code, excused = self._child.poll(), self._waited(self._child.pid)
                if code is not None:
                    self._child, pause = None, self._pause_after(exits.of_process(code))
                    if code != ALREADY_MANAGED:
                        start_at = began = now + pause
                if now > began + self._answer_seconds + excused:
                    if self._child is not None:
                        self._child.kill()  # it has not come to where others could find it
                        self._child.wait()
                        self._child = None
                    raise ManagerNotStarted(self._complaint())
                if self._child is None and self._living() is None and now >= start_at:
                    self._child = self._start()
                time.sleep(POLL_SECONDS)
            self._located = True
            if self._ready_at is None:
                self._ready_at = self._clock()
            return found

    def _pause_after(self, code: int) -> float:
        """Seconds from the manager's exit to its next start.

        Args:
            code: one of `exits`, of the manager that was started here last.

        Raises:
            ManagerNotStarted, ManagerMisconfigured
        """
        if code == ALREADY_MANAGED:
            return 0.0
        ready_at, self._ready_at = self._ready_at, None
        served = 0.0 if ready_at is None else self._clock() - ready_at
        how = self._last_words()
        missing = exits.missing_module(how)
        mistake = code == exits.MISTAKE or bool(missing)
        if missing:
            how = (
                f"the manager cannot start: {sys.executable} has no module {missing!r}; "
                "install rlboost-jax there again"
            )
        elif not mistake:
            how = f"{exits.described(code)}; last words in {self._log}: {how}"
        cause = Cause.MISTAKE if mistake else Cause.OUTSIDE
        end = End(cause=cause, how=how, served_seconds=served)
        match after_end("the manager", self._failed, end, self._restarts):
            case Again(failed=failed, seconds=seconds):
                self._failed = failed
                return seconds
            case Stop(line=line):
                self._failed = 0
                raise (ManagerMisconfigured if mistake else ManagerNotStarted)(line)

    def seal_key(self) -> Ed25519PrivateKey:
        """Key that seals manifests.

        Raises:
            CredentialsUnusable: a manager that has answered has made it; it is gone.
        """
        folder = trainer_folder(self._workdir)
        try:
            return read_seal_key(folder)
        except (OSError, ValueError) as error:
            raise CredentialsUnusable(
                f"cannot use {folder / SEAL_KEY}: {error}; end the manager, which makes another "
                "as it starts"
            ) from None

    def close(self) -> None:
        """Wait until the manager has left; ask it to after `LEAVE_SECONDS`.

        One that was killed as it left is followed by another, which sends its fleet home.
        """
        if self._located:
            record = self._living()
            if record is not None:
                self._wait(lambda: not self._runs(record), LEAVE_SECONDS)
            self.see_off()

    def see_off(self) -> None:
        """Make the manager leave with its fleet, even one that was killed.

        A manager that leaves removes its record. An existing record belongs to a manager that has
        not left, or that was killed and whose servers look for it.
        """
        for _ in range(MOST_FAREWELLS):
            if self._record() is None:
                return
            try:
                if self._living() is None:
                    self.locate()
            except (ManagerNotStarted, OSError):
                return
            self.dismiss()

    def dismiss(self) -> None:
        """Ask a living manager to release its fleet and leave, and wait until it has."""
        record = self._living()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if record is None or not self._runs(record):
                return
            os.kill(record.pid, number)
            self._wait(lambda: not self._runs(record), LEAVE_SECONDS)

    def _record(self) -> ManagerRecord | None:
        """Record of the manager of this run that was the last to listen; None if there is none."""
        record = read_record(self._workdir)
        return record if record is not None and record.run_id == self._run_id else None

    def _living(self) -> ManagerRecord | None:
        record = self._record()
        return record if record is not None and self._runs(record) else None

    def _runs(self, record: ManagerRecord) -> bool:
        if self._child is not None and self._child.pid == record.pid:
            return self._child.poll() is None
        return record.lives

    def _answering(self) -> Endpoint | None:
        record = self._living()
        if record is None:
            return None  # nobody is asked at the address of one that has died: it is anybody's now
        self._trouble = ""
        try:
            # The environment may hold a token for servers; the trainer's is in its folder.
            credentials = read_credentials(trainer_folder(self._workdir), environment={})
        except CredentialsUnusable as error:
            self._trouble = str(error)
            return None
        manager = Endpoint(address=record.local_address, credentials=credentials)
        request = urllib.request.Request(manager.url("/status"), headers=manager.headers)
        try:
            seconds, tls = self._ask_seconds, credentials.tls
            with opened(request, timeout=seconds, tls=tls):
                return manager
        except HTTPError as error:
            with error:
                if error.code == RECOVERS:
                    self._progress = error.read(PROGRESS_BYTES).decode(errors="replace").strip()
                self._trouble = self._progress or explain(error)
            return None
        except (OSError, HTTPException) as error:  # it is not there, slow, or another program
            self._trouble = explain(error) or f"{manager.address}: {error}"
            return None

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(exist_ok=True)
        with open(self._log, "ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={self._workdir}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._child

    def _complaint(self) -> str:
        """Reason why no manager answers in time."""
        record = self._living()
        if record is not None:
            return (
                f"the manager (process {record.pid}) lives and has not answered for "
                f"{self._answer_seconds:g} s; let it go on, or end it, and start again"
                + (f" ({self._trouble})" if self._trouble else "")
            )
        return (
            f"the manager does not listen after {self._answer_seconds:g} s; "
            f"last words in {self._log}: {self._last_words()}"
        )

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return " ".join(lines) or "none"

    @staticmethod
    def _wait(settled: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not settled():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True
