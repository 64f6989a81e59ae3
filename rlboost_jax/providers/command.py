"""Launcher by the user's own commands, which start, stop and list servers: `fleet.command`.

The commands are argument lists: no shell reads them, and a placeholder fills a part of one word,
whatever it contains. Everything that a server needs is in the environment of `start`; what opens
the manager is there only, since every user of a host can read command lines.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from rlboost_jax.providers.base import NONCE_VARIABLE, Rendezvous
from rlboost_jax.providers.external_program import run_program
from rlboost_jax.providers.launcher import Job, JobState, LaunchFailed
from rlboost_jax.providers.log_files import last_lines
from rlboost_jax.settings.launchers_config import CommandConfig, names_of
from rlboost_jax.trust.credentials import JOIN_VARIABLE, packed

STATES: Final[Mapping[str, JobState]] = {"waiting": "waiting", "running": "running"}


class CommandLauncher:
    """Launcher that runs the commands of `fleet.command`.

    Args:
        price_per_hour: dollars, for servers to announce.
    """

    def __init__(
        self, command: CommandConfig, rendezvous: Rendezvous, *, price_per_hour: float
    ) -> None:
        self.pools = names_of(command.pools)
        self._command, self._rendezvous = command, rendezvous
        self._price = price_per_hour

    async def start(self, name: str, nonce: str, pool: str) -> None:
        join = self._rendezvous.join
        try:
            credentials = packed(join)
        except OSError as error:
            raise LaunchFailed(f"cannot read {join}: {error.strerror}", sure=True) from None
        await self._run(
            self._command.start,
            {"name": name, "nonce": nonce, "run": self._rendezvous.run_id, "pool": pool},
            {
                NONCE_VARIABLE: nonce,
                JOIN_VARIABLE: credentials,
                "RLBOOST_JOIN_FOLDER": str(join),
                "RLBOOST_MANAGER": self._rendezvous.address,
                "RLBOOST_PRICE": f"{self._price:g}",
            },
        )

    async def stop(self, job: Job, grace_seconds: float) -> None:
        grace = f"{max(0.0, grace_seconds):.0f}" if grace_seconds < 1e6 else "1000000"
        if grace_seconds > 0:
            grace = max(grace, "1", key=float)
        tag = {"name": job.name, "nonce": job.nonce, "run": job.run}
        await self._run(self._command.stop, {**tag, "grace": grace})

    async def list(self) -> Sequence[Job]:
        out = await self._run(self._command.list, {"run": self._rendezvous.run_id})
        return tuple(_job(line) for line in out.splitlines() if line.strip())

    async def log(self, name: str, nonce: str) -> Sequence[str]:
        if not self._command.log:
            return ()
        tag = {"name": name, "nonce": nonce, "run": self._rendezvous.run_id}
        return last_lines(await self._run(self._command.log, tag))

    async def _run(
        self, template: str, values: Mapping[str, str], more: Mapping[str, str] | None = None
    ) -> str:
        filled = {"name": "", "nonce": "", "pool": "", "grace": "", **values}
        filled["manager"] = self._rendezvous.address
        tag = {f"RLBOOST_{key.upper()}": value for key, value in filled.items()}
        return await run_program(
            [word.format_map(filled) for word in shlex.split(template)],
            timeout_seconds=self._command.timeout_seconds,
            environment={**os.environ, **tag, **(more or {})},
        )


def _job(line: str) -> Job:
    """Parse a line RUN NAME NONCE [STATE [REASON …]]."""
    words = line.split(maxsplit=4)
    if not len(words) >= 3 or (len(words) > 3 and words[3] not in STATES):
        raise LaunchFailed(
            f"fleet.command.list printed {line[:100]!r}; RUN NAME NONCE is a line of it, and "
            f"{' or '.join(STATES)} may follow"
        )
    run, name, nonce, *rest = words
    state = STATES[rest[0]] if rest else "running"
    return Job(handle=name, run=run, name=name, nonce=nonce, state=state, reason="".join(rest[1:]))
