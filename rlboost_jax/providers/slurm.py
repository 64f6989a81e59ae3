"""Launcher of servers as batch jobs of a Slurm cluster: sbatch, squeue and scancel.

A job's name is its tag, `rlboost/RUN/NAME/NONCE`: every squeue shows it, and no accounting database
is needed. The job's shell becomes the server (`exec`), so that signals to the job reach it: SIGTERM
from `terminate`, and ahead of a preemption or of the job's time limit `fleet.notice_signal`.

Jobs are not requeued: Slurm would give one a new submit time and keep it waiting for two minutes,
and a fresh job, for which the manager asks anyway, has neither against it.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rlboost_jax.providers.base import ANY_POOL, NONCE_VARIABLE, Rendezvous
from rlboost_jax.providers.external_program import run_program
from rlboost_jax.providers.launcher import Job, JobState, LaunchFailed
from rlboost_jax.providers.log_files import tail_of
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.foreign_keys import warn_once
from rlboost_jax.settings.launchers_config import names_of
from rlboost_jax.trust.credentials import JOIN_VARIABLE, packed

TAG: Final = "rlboost"
COLUMNS: Final = ("JobID", "State", "exit_code", "Reason", "Name")
SEPARATOR: Final = "|"
# Any other state counts as running, with a line: a job that was forgotten would cost money.
STATES: Final[Mapping[str, JobState]] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"), "waiting"),
    **dict.fromkeys(("RESV_DEL_HOLD", "SPECIAL_EXIT"), "waiting"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING"), "running"),
    **dict.fromkeys(("STAGE_OUT", "STOPPED", "SUSPENDED", "RESIZING"), "running"),
    **dict.fromkeys(("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE"), "over"),
    **dict.fromkeys(("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"), "over"),
    **dict.fromkeys(("OUT_OF_MEMORY", "REVOKED", "RECONFIG_FAIL"), "over"),
}


class SlurmLauncher:
    """Launcher of jobs. Logs are `<workdir>/logs/<name>.log`, if nodes see the workdir.

    Args:
        programs: folder of Slurm's; None: where the PATH has them.
    """

    def __init__(
        self, fleet: FleetConfig, rendezvous: Rendezvous, *, programs: Path | None = None
    ) -> None:
        self._programs = programs
        self._slurm, self._fleet, self._rendezvous = fleet.slurm, fleet, rendezvous
        self.pools = names_of(fleet.slurm.partitions)
        self._logs = rendezvous.workdir / "logs"

    async def start(self, name: str, nonce: str, pool: str) -> None:
        slurm, run = self._slurm, self._rendezvous.run_id
        own = {NONCE_VARIABLE: nonce}
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            if slurm.join_by == "environment":
                own[JOIN_VARIABLE] = packed(self._rendezvous.join)
        except OSError as error:
            raise LaunchFailed(f"{error.filename}: {error.strerror}", sure=True) from None
        partitions = self.pools if pool == ANY_POOL else (pool,)
        words = [
            *("sbatch", "--parsable", f"--job-name={TAG}/{run}/{name}/{nonce}"),
            *([f"--partition={','.join(partitions)}"] if partitions else []),
            f"--time={slurm.minutes}",
            f"--output={self._logs / f'{name}.log'}".replace("%", "%%"),  # %j is a job's number
            *("--open-mode=append", "--no-requeue"),
            *self._signal(),
            # All of sbatch's own environment, which is what a job is to have: with a list of names
            # Slurm would start a login shell of the user on the node, and add what that sets.
            "--export=ALL",
            *shlex.split(slurm.options),
        ]
        kept = (*names_of(slurm.export), "SLURM_CONF")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        await self._run(words, environment={**environment, **own}, given=self._script(name))

    async def stop(self, job: Job, grace_seconds: float) -> None:
        if grace_seconds > 0 and job.state == "running":
            await self._run(("scancel", "--signal=TERM", "--batch", job.handle))
            return
        if job.state == "running":
            # Alone scancel would wait for KillWait, half a minute, between its two signals.
            await self._run(("scancel", "--quiet", "--signal=KILL", "--full", job.handle))
        await self._run(("scancel", "--quiet", job.handle))

    async def list(self) -> Sequence[Job]:
        format_ = ",".join(f"{column}:{SEPARATOR}" for column in COLUMNS)
        out = await self._run(
            ("squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", "-O", format_)
        )
        jobs = [job for line in out.splitlines() if (job := _job(line)) is not None]
        # Logs are on a file system of many hosts, which may be slow, or not answer.
        return await asyncio.to_thread(lambda: [self._with_last_words(job) for job in jobs])

    def _signal(self) -> Sequence[str]:
        """Options for the signal to the job's shell, which is the server, ahead of its end."""
        if not self._fleet.notice_seconds:
            return []
        name = self._fleet.notice_signal.removeprefix("SIG")
        return [f"--signal=B:{name}@{max(1, round(self._fleet.notice_seconds))}"]

    def _script(self, name: str) -> str:
        slurm = self._slurm
        program = shlex.split(slurm.program) or [sys.executable, "-m", "rlboost_jax.rollout"]
        words = [
            *program,
            f"--manager={self._rendezvous.address}",
            f"--name={name}",
            f"--price={self._fleet.price_per_hour:g}",
        ]
        if slurm.join_by == "file":
            words.append(f"--join={self._rendezvous.join}")
        zone = '--zone="${SLURM_JOB_PARTITION:-slurm}"'
        return f"#!/bin/sh\n{slurm.setup}\nexec {shlex.join(words)} {zone}\n"

    def _with_last_words(self, job: Job) -> Job:
        """Add the last line of an ended job's log to its reason."""
        if job.state != "over" or job.run != self._rendezvous.run_id:
            return job
        log = tail_of(self._logs / f"{job.name}.log")
        return replace(job, reason="; ".join(filter(None, (job.reason, *log[-1:]))), log=log)

    async def _run(
        self, words: Sequence[str], environment: Mapping[str, str] = os.environ, given: str = ""
    ) -> str:
        found = shutil.which(words[0], path=self._programs)
        return await run_program(
            (found or words[0], *words[1:]),
            timeout_seconds=self._slurm.timeout_seconds,
            environment=environment,
            given=given,
        )


def _job(line: str) -> Job | None:
    """Parse a line of squeue; None if the job is not ours."""
    handle, state, code, reason, name, *_ = (*line.split(SEPARATOR), "", "", "", "", "")
    tag = name.strip().split("/")
    if len(tag) != 4 or tag[0] != TAG:
        return None
    # Such as "CANCELLED by 1000" and, where a column is too narrow, "CANCELLED+".
    word = (state.split() or [""])[0].rstrip("+").upper()
    if (found := STATES.get(word)) is None:
        warn_once(f"squeue: nobody knows the state {word[:40]!r}; the job counts as running")
        found = "running"
    return Job(
        handle=handle.strip(),
        run=tag[1],
        name=tag[2],
        nonce=tag[3],
        state=found,
        code=_exit_code(code) if found == "over" else None,
        reason=f"{state.strip().lower()} ({reason.strip()})" if found == "over" else reason.strip(),
    )


def _exit_code(text: str) -> int | None:
    """Exit code from a wait status; None if a signal ended the program, or it never began."""
    if not text.strip().isdecimal() or not os.WIFEXITED(status := int(text)):
        return None
    return os.WEXITSTATUS(status)
