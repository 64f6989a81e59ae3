"""Supervision of a trainer: start it, and restart it if it was killed, failed or stalled.

Invariants: one trainer at a time, in a process group of its own; one that is complete, made a
mistake or was asked to end is not started again; nor is one that failed too often in a row
without getting any further. One that shows no progress for too long (`platform/stalls.py`)
writes down where its threads are and is ended, which counts as a failure. While none runs, the
manager does, and with it the fleet: one that was killed as well is started again from its journal.
When this process ends so has its trainer, and its manager.

Source of the codes: `rlboost_jax/platform/exits.py`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from rlboost_jax.learner.checkpoints.folders import broken_in, steps_in
from rlboost_jax.learner.fleet.manager_process import ManagerNotStarted, ManagerProcess
from rlboost_jax.learner.workdir import is_held
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.platform import exits, process_liveness, pulse
from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.platform.stacks import SIGNAL, stacks_path
from rlboost_jax.platform.stalls import Patience, after_look, bound_seconds
from rlboost_jax.trust.run_files import read_record

FIRST_PAUSE_SECONDS: Final = 0.5  # before a restart; doubles with each start that came to nothing
LONGEST_PAUSE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1  # between two looks at signals and the manager
WATCH_SECONDS: Final = 1.0  # between two looks at a trainer
DUMP_SECONDS: Final = 2.0  # for one that stands still to write down where, at most
DUMP_LOOK_SECONDS: Final = 0.25  # what has not grown for as long is written
LEAVE_SECONDS: Final = 10.0  # … and to end by itself
GONE_SECONDS: Final = 30.0  # for one that was killed to be gone, before a line says that it is not
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Steps a run has reached; -1 where there are none."""

    step: int = -1  # of the newest row
    checkpoint: int = -1  # the newest complete one
    complete: tuple[int, ...] = ()  # all complete ones
    broken: frozenset[int] = frozenset()  # those that a start has put aside

    def beyond(self, other: "RunProgress") -> bool:
        return self.step > other.step or self.checkpoint > other.checkpoint

    def joined(self, other: "RunProgress") -> "RunProgress":
        """The farther of each: a restart removes rows that it then writes again."""
        return replace(
            self,
            step=max(self.step, other.step),
            checkpoint=max(self.checkpoint, other.checkpoint),
        )

    def went_back_from(self, before: "RunProgress") -> "RunProgress":
        """Progress to which the last start went back by putting checkpoints aside; else `before`,
        since the same checkpoint broken once more is no new start for a run."""
        fresh = self.broken - before.broken
        if not fresh:
            return before
        base = max((step for step in self.complete if step < min(fresh)), default=-1)
        return RunProgress(step=base - 1, checkpoint=base)


@dataclass(frozen=True, kw_only=True)
class History:
    """Outcome of the starts so far."""

    reached: RunProgress
    fruitless: int = 0  # failures in a row after which the run was no further


def after_end(
    history: History,
    code: int,
    reached: RunProgress,
    *,
    max_restarts: int,
    first_pause_seconds: float = FIRST_PAUSE_SECONDS,
) -> tuple[History, float | None]:
    """Decide what to do about a trainer that has ended.

    Args:
        code: one of `exits`.
        reached: by the run as it lies there now.
        max_restarts: how often in a row it may fail without progress and be started again.
        first_pause_seconds: before a restart; it doubles with each start that came to nothing.

    Returns:
        the history with this end, and the seconds until the next start; None: it was the last.
    """
    before = reached.went_back_from(history.reached)
    further = reached.beyond(before)
    fruitless = 0 if further else history.fruitless + 1
    history = History(reached=reached.joined(before), fruitless=fruitless)
    if code in (exits.COMPLETE, exits.MISTAKE) or code in exits.ASKED or fruitless > max_restarts:
        return history, None
    longest = max(first_pause_seconds, LONGEST_PAUSE_SECONDS)
    return history, backoff_seconds(
        max(0, fruitless - 1), first=first_pause_seconds, longest=longest
    )


def progress_of(workdir: Path) -> RunProgress:
    """Progress of the run in a folder, which may not exist yet."""
    rows = [row["step"] for row in read_metrics(workdir) if isinstance(row.get("step"), int)]
    saved = steps_in(workdir / "checkpoints")
    return RunProgress(
        step=max(rows, default=-1),
        checkpoint=max(saved, default=-1),
        complete=tuple(saved),
        broken=frozenset(broken_in(workdir / "checkpoints")),
    )


class Supervisor:
    """Starts a trainer, and restarts it each time that it fails.

    Args:
        command: of the trainer, which works in `workdir`.
        leads: the trainer has a manager; other processes of a trainer do not, see `processes/`.
        stall_seconds: how long it may show no progress; None: learnt, 0: for ever.
        process: its number, where a trainer has several.
        watch_seconds: between two looks at it.
        first_pause_seconds: before a restart; it doubles with each start that came to nothing.
        leave_seconds: for one that stands still to end by itself.
        speaks_to: descriptors of its standard output and error; None: those of this process.
        note: shows a line to people.
    """

    def __init__(
        self,
        command: Sequence[str],
        workdir: Path,
        *,
        max_restarts: int,
        leads: bool = True,
        stall_seconds: float | None = None,
        process: int = 0,
        watch_seconds: float = WATCH_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        leave_seconds: float = LEAVE_SECONDS,
        speaks_to: tuple[int | None, int | None] = (None, None),
        note: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._command, self._workdir = command, workdir.absolute()
        self._max_restarts, self._leads, self._note = max_restarts, leads, note
        self._stall_seconds, self._watch_seconds = stall_seconds, watch_seconds
        self._leave_seconds, self._first_pause_seconds = leave_seconds, first_pause_seconds
        self._stacks = stacks_path(self._workdir, process)
        self._patience = Patience()
        self._speaks_to = speaks_to
        self._starts = 0
        self._asked = 0  # the last signal that was passed on
        self._trainer: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run trainers until no restart is due; returns the last exit code. Main thread only."""
        before = {number: signal.getsignal(number) for number in PASSED_ON}
        for number in PASSED_ON:
            if before[number] is not signal.SIG_IGN:  # nohup wants it ignored
                signal.signal(number, self._pass_on)
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        history = History(reached=progress_of(self._workdir))
        while True:
            code = self._train()
            history, pause = after_end(
                history,
                code,
                progress_of(self._workdir),
                max_restarts=self._max_restarts,
                first_pause_seconds=self._first_pause_seconds,
            )
            if pause is None or self._asked:
                self._end(code, history)
                return code
            self._note(
                f"the trainer {exits.described(code)}; starting it again in {pause:g} s"
                + (f" ({history.fruitless} of {self._max_restarts})" if history.fruitless else "")
            )
            if not self._wait(pause):
                self._dismiss_manager()
                return exits.by_signal(self._asked)

    def _train(self) -> int:
        """Run one trainer from start to end; returns its exit code.

        In a group of its own: an interrupt in the terminal reaches it once, through us.
        """
        self._starts += 1
        out, err = self._speaks_to
        memory = pulse.shared_memory()
        try:
            self._trainer = subprocess.Popen(
                self._command,
                process_group=0,
                stdout=out,
                stderr=err,
                pass_fds=[memory],
                env={**os.environ, pulse.VARIABLE: str(memory)},
            )
            if self._asked:  # before there was anyone to pass it on to
                self._trainer.send_signal(self._asked)
            return self._watched(self._trainer, memory)
        finally:
            os.close(memory)

    def _watched(self, trainer: "subprocess.Popen[bytes]", memory: int) -> int:
        """Wait for a trainer, ending it if it stalls; returns its exit code."""
        patience, looked = self._patience.of_next_start(), time.monotonic()
        while (code := _code(trainer, self._watch_seconds)) is None:
            now = time.monotonic()
            patience = after_look(
                patience,
                pulse.read_sign(memory),
                now - looked,
                stopped=process_liveness.is_stopped(trainer.pid),
            )
            looked, bound = now, bound_seconds(patience, self._stall_seconds)
            if bound is not None and patience.still >= bound and not self._asked:
                code = self._end_standing(trainer, patience)
                break
        self._patience = patience
        return code

    def _end_standing(self, trainer: "subprocess.Popen[bytes]", patience: Patience) -> int:
        """End a stalled trainer; returns its exit code, that of a killed process."""
        self._note(
            f"the trainer shows no progress for {patience.still:.0f} s "
            f"({patience.phase or 'starting'}): it is ended; where its threads are is in "
            f"{self._stacks}"
        )
        before = _size(self._stacks)
        trainer.send_signal(SIGNAL)
        trainer.send_signal(signal.SIGCONT)  # one that was stopped could neither say nor end
        code = self._dumped(trainer, before)
        if code is None:
            trainer.terminate()
            code = _code(trainer, self._leave_seconds)
        if code is None:
            trainer.kill()
            code = self._gone(trainer)
        over = code in (exits.COMPLETE, exits.MISTAKE)  # at the last moment
        return code if over else exits.by_signal(signal.SIGKILL)

    def _gone(self, trainer: "subprocess.Popen[bytes]") -> int:
        """Wait for a killed trainer, perhaps held by a disk; returns its exit code."""
        if _code(trainer, GONE_SECONDS) is None:
            self._note(
                f"the trainer (process {trainer.pid}) was killed and is not gone: the system waits "
                f"for a device, likely the disk of {self._workdir}; after that it is started again"
            )
        return exits.of_process(trainer.wait())

    def _dumped(self, trainer: "subprocess.Popen[bytes]", before: int) -> int | None:
        """Wait until it has written its stack traces; its exit code if it ended instead.

        Args:
            before: bytes that had been written.
        """
        size = before
        until = time.monotonic() + DUMP_SECONDS
        while (code := _code(trainer, DUMP_LOOK_SECONDS)) is None and time.monotonic() < until:
            last, size = size, _size(self._stacks)
            if size == last != before:
                break
        return code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        if self._trainer is not None:
            self._trainer.send_signal(number)  # nothing where it has ended

    def _wait(self, seconds: float) -> bool:
        """Wait, reviving the manager meanwhile; False as soon as this process is asked to end."""
        until, reviving = time.monotonic() + seconds, self._leads
        while not self._asked and time.monotonic() < until:
            reviving = reviving and self._revive_manager()
            time.sleep(LOOK_SECONDS)
        return not self._asked

    def _revive_manager(self) -> bool:
        """Start the manager again where it was killed, so that no server is orphaned.

        One that has left, or never came, is the next trainer's to start.

        Returns:
            whether there is any use in trying again before the next trainer does.
        """
        record = read_record(self._workdir)
        if record is None or record.lives:
            return True
        try:
            ManagerProcess(self._workdir, record.run_id).locate()
        except (ManagerNotStarted, OSError) as error:  # the trainer will try as well
            self._note(f"the manager does not come back: {error}")
            return False
        return True

    def _end(self, code: int, history: History) -> None:
        if history.fruitless > self._max_restarts and code not in (exits.COMPLETE, exits.MISTAKE):
            self._note(
                f"the trainer {exits.described(code)} {history.fruitless} times without a new step "
                f"or checkpoint (--max_restarts={self._max_restarts}); what it said last is above, "
                f"what its manager said in {self._workdir / 'logs' / 'manager.log'}"
            )
        at_once = code == exits.MISTAKE and self._starts == 1  # that manager may wait for another
        if code != exits.COMPLETE and not at_once:
            self._dismiss_manager()

    def _dismiss_manager(self) -> None:
        """End the manager and its fleet, since no trainer will start soon."""
        record = read_record(self._workdir)
        if (
            self._leads and record is not None and not is_held(self._workdir)
        ):  # else another trainer has come
            ManagerProcess(self._workdir, record.run_id).dismiss()


def _size(path: Path) -> int:
    """Bytes of a file; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _code(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """Exit code of a process; None if it still runs after `seconds`."""
    try:
        return exits.of_process(process.wait(seconds))
    except subprocess.TimeoutExpired:
        return None
